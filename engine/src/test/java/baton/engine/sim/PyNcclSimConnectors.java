package baton.engine.sim;

import baton.connectors.pynccl.LookupSession;
import baton.connectors.pynccl.PyNcclConnector;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.KvMemory;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import baton.pipe.Tensor;
import baton.pipe.TensorMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;

/**
 * PyNcclConnector over sessions in the simulated network: prefill instance {@code p1} has {@code d1} as its counterpart, and so on; an
 * instance without a counterpart never connects. Requests are sent to any pair of instances, so many lookups find no entry. Faults:
 * connections end, also between the tensors of an entry; peers connect late; entries are lost, late, or find no room; threads run late;
 * instances die and come back.
 */
final class PyNcclSimConnectors extends FaultyConnectors {
    private static final int FIRST_PORT = 6000;
    private static final Duration LOOKUP = Duration.ofMillis(150);
    private static final Duration INSERT = Duration.ofMillis(40);
    private static final Duration KEEP = Duration.ofMillis(100);
    private static final Duration CONNECT_WAIT = Duration.ofMillis(30);

    /** Nanoseconds. */
    private static final long MOST_LATE = 20_000_000;

    /** More than the largest entry. */
    private static final long LEAST_BUFFER_BYTES = 1500;

    private final long bufferBytes;
    private double slow;

    /** Started sessions by instance. */
    private final Map<String, Session> sessions = new TreeMap<>();

    private final Set<SimNode.Pair> broken = new LinkedHashSet<>();
    private int connections;

    PyNcclSimConnectors(SimCluster.Site site) {
        super(site);
        this.bufferBytes = LEAST_BUFFER_BYTES * (1 + random.nextInt(4));
        faults.inSome(0.1, "connection ends");
        faults.inSome(0.2, "entry lost");
        faults.inSome(0.2, "buffer full");
        faults.inSome(0.5, "peer connects late");
        this.slow = faults.odds(0.8);
    }

    @Override
    public KvConnector connect(SimNode node) {
        CooperativeThreads threads = new CooperativeThreads();
        PyNcclConnector connector =
                new PyNcclConnector(new ThreadsRuntime(node.ticker(), threads), (_, _) -> new Session(node, threads));
        return new KvConnector() {
            @Override
            public Set<String> names() {
                return connector.names();
            }

            @Override
            public SchedulerConnector scheduler(ConnectorContext context) {
                return connector.scheduler(configured(context, node.name()));
            }

            @Override
            public WorkerConnector worker(ConnectorContext context, Rank rank) {
                return connector.worker(configured(context, node.name()), rank);
            }
        };
    }

    /** The simulation's instances have both roles; the connector needs one. */
    private ConnectorContext configured(ConnectorContext context, String instance) {
        KvTransferConfig config = KvTransferConfig.builder(
                        "PyNcclConnector", isProducer(instance) ? KvRole.PRODUCER : KvRole.CONSUMER)
                .parallelSize(2)
                .port(FIRST_PORT + 2 * Integer.parseInt(instance.substring(1)))
                .bufferSize(bufferBytes)
                .loadFailurePolicy(context.config().loadFailurePolicy())
                .extra("lookup_timeout_seconds", LOOKUP.toNanos() / 1e9)
                .extra("insert_timeout_seconds", INSERT.toNanos() / 1e9)
                .extra("keep_seconds", KEEP.toNanos() / 1e9)
                .extra("connect_wait_seconds", CONNECT_WAIT.toNanos() / 1e9)
                .build();
        return context.with(config);
    }

    private static boolean isProducer(String instance) {
        return instance.startsWith("p");
    }

    /** Sometimes both legs of a request run at the same time; neither needs parameters. */
    @Override
    public Optional<JsonFields> atOnce(String prefill) {
        return random.nextInt(3) == 0 ? Optional.of(JsonFields.empty("kv_transfer_params")) : Optional.empty();
    }

    @Override
    public Set<SimNode.Pair> calm() {
        var _ = super.calm();
        slow = 0;
        return Set.copyOf(broken);
    }

    /** All sessions: a producer has to answer lookups while its engine has nothing to do. */
    @Override
    public void poll(SimNode node) {
        connectPairs();
        List.copyOf(sessions.values()).forEach(Session::poll);
    }

    @Override
    public Arena arena() {
        // Threads that load write to it.
        return Arena.ofShared();
    }

    private long now() {
        return site.ticker().nanos();
    }

    private void connectPairs() {
        for (Session consumer : List.copyOf(sessions.values())) {
            Session producer = sessions.get("p" + consumer.node.name().substring(1));
            if (!consumer.producer && producer != null && consumer.isReady() && producer.isReady()) {
                Connection made = new Connection(++connections, producer, consumer);
                producer.connection = Optional.of(made);
                consumer.connection = Optional.of(made);
            }
        }
    }

    /** A session of one life of an instance. */
    private final class Session implements LookupSession {
        private final SimNode node;
        private final CooperativeThreads threads;
        private final boolean producer;
        private Optional<Connection> connection = Optional.empty();
        private long readyAt;
        private Deadline reconnect;
        private boolean closed;

        private Session(SimNode node, CooperativeThreads threads) {
            this.node = node;
            this.threads = threads;
            this.producer = isProducer(node.name());
            this.reconnect = Deadline.after(node.ticker(), CONNECT_WAIT);
        }

        @Override
        public TensorMemory start(KvMemory pool) {
            disconnected();
            sessions.put(node.name(), this);
            return TensorMemory.HOST;
        }

        private void disconnected() {
            connection = Optional.empty();
            reconnect = Deadline.after(node.ticker(), CONNECT_WAIT);
            readyAt = now() + (faults.happens("peer connects late") ? random.nextLong(MOST_LATE) : 0);
        }

        private boolean isReady() {
            return connection.isEmpty() && now() - readyAt >= 0;
        }

        private Optional<LookupBuffer> buffer() {
            return connection.map(made -> producer ? made.inserting : made.lookingUp);
        }

        /** Runs on one of the threads. */
        @Override
        public Optional<LookupBuffer> await(Duration timeout) {
            Deadline deadline = Deadline.after(node.ticker(), timeout);
            threads.await(() -> {
                connectPairs();
                return connection.isPresent() || closed || deadline.isOver() || reconnect.isOver();
            });
            return buffer();
        }

        @Override
        public boolean isUp(LookupBuffer used) {
            return buffer().filter(used::equals).isPresent();
        }

        private void poll() {
            for (Optional<byte[]> message = node.endpoint().receive();
                    message.isPresent();
                    message = node.endpoint().receive()) {
                ByteBuffer bytes = ByteBuffer.wrap(message.get());
                int number = bytes.getInt();
                // Messages of an earlier connection may still arrive.
                connection.filter(current -> current.number == number).ifPresent(current -> {
                    if (producer) {
                        current.inserting.received(bytes);
                    } else {
                        current.lookingUp.received(bytes);
                    }
                });
            }
            // Later ones run in a later poll: prompts that are queued to be sent must keep their blocks until then.
            if (random.nextDouble() >= slow) {
                threads.run();
            }
        }

        @Override
        public void close() {
            closed = true;
            sessions.remove(node.name(), this);
            connection.ifPresent(Connection::end);
            threads.run();
        }
    }

    /** A connection of two sessions, which carries messages in order until it ends. */
    private final class Connection {
        private final int number;
        private final Session producer;
        private final Session consumer;
        private final Inserting inserting = new Inserting(this);
        private final LookingUp lookingUp = new LookingUp(this);
        private boolean up = true;

        private Connection(int number, Session producer, Session consumer) {
            this.number = number;
            this.producer = producer;
            this.consumer = consumer;
        }

        private void send(Session from, Session to, byte[] message) {
            if (up && faults.happens("connection ends")) {
                end();
            }
            if (up) {
                ByteBuffer bytes = ByteBuffer.allocate(Integer.BYTES + message.length);
                bytes.putInt(number).put(message);
                from.node.endpoint().sendInOrder(to.node.name(), bytes.array(), () -> up);
            }
        }

        private void end() {
            if (up) {
                up = false;
                producer.disconnected();
                consumer.disconnected();
                broken.add(new SimNode.Pair(producer.node.name(), consumer.node.name()));
            }
        }

        /** Waits on one of a session's threads. */
        private void await(Session session, Deadline deadline, BooleanSupplier condition) {
            session.threads.await(() -> !up || condition.getAsBoolean() || deadline.isOver());
        }

        private void requireUp() throws PipeException {
            if (!up) {
                throw new PipeException("simulated: the connection has ended");
            }
        }
    }

    private static final byte SELECT = 0;
    private static final byte CANCEL = 1;
    private static final byte FOUND = 2;
    private static final byte NEVER = 3;
    private static final byte PART = 4;

    private static byte[] message(byte kind, int number, int[] tokens) {
        ByteBuffer bytes = ByteBuffer.allocate(1 + (1 + tokens.length) * Integer.BYTES);
        bytes.put(kind).putInt(number);
        Arrays.stream(tokens).forEach(bytes::putInt);
        return bytes.array();
    }

    /** A message with a tensor: length and name of its type, number of dimensions, dimensions, bytes. */
    private static byte[] part(Tensor tensor) {
        byte[] data = tensor.data().host().toArray(ValueLayout.JAVA_BYTE);
        int dimensions = tensor.shape().size();
        byte[] type = tensor.type().torchName().getBytes(StandardCharsets.US_ASCII);
        ByteBuffer bytes = ByteBuffer.allocate(2 + type.length + (1 + dimensions) * Long.BYTES + data.length);
        bytes.put(PART).put((byte) type.length).put(type).putLong(dimensions);
        tensor.shape().forEach(bytes::putLong);
        return bytes.put(data).array();
    }

    private static Tensor tensor(byte[] part) {
        ByteBuffer bytes = ByteBuffer.wrap(part, 1, part.length - 1);
        byte[] name = new byte[bytes.get()];
        bytes.get(name);
        Tensor.Type type = Tensor.Type.named(new String(name, StandardCharsets.US_ASCII));
        List<Long> shape = new ArrayList<>();
        for (long dimensions = bytes.getLong(); dimensions > 0; dimensions--) {
            shape.add(bytes.getLong());
        }
        Tensor tensor = TensorMemory.HOST.allocate(type, shape);
        tensor.data().host().copyFrom(MemorySegment.ofBuffer(bytes));
        return tensor;
    }

    /** The producer's end: stores entries and answers lookups. */
    private final class Inserting implements LookupBuffer {
        private final Connection connection;
        private final List<Stored> stored = new ArrayList<>();

        /** Lookups that wait, by number. */
        private final Map<Integer, int[]> waiting = new LinkedHashMap<>();

        /**
         * An entry.
         *
         * @param kind of the answer: {@link #FOUND} or {@link #NEVER}
         * @param parts messages that follow it
         * @param since its insertion, in nanoseconds
         */
        private record Stored(int[] tokens, byte kind, List<byte[]> parts, long bytes, long since) {}

        private Inserting(Connection connection) {
            this.connection = connection;
        }

        @Override
        public void insert(Entry entry, Duration timeout) throws PipeException {
            List<byte[]> parts = List.of(part(entry.key()), part(entry.value()), part(entry.hidden()));
            entry.close();
            long bytes = parts.stream().mapToLong(part -> part.length).sum() + 5L * entry.tokens().length;
            insert(new Stored(entry.tokens().clone(), FOUND, parts, bytes, now()), timeout);
        }

        @Override
        public void insertNever(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
            insert(new Stored(tokens.clone(), NEVER, List.of(), 5L * tokens.length, now()), timeout);
        }

        private void insert(Stored entry, Duration timeout) throws PipeException {
            if (faults.happens("buffer full")) {
                throw new PipeException("simulated: no room");
            }
            Deadline deadline = Deadline.after(site.ticker(), timeout);
            connection.await(connection.producer, deadline, () -> hasRoom(entry));
            connection.requireUp();
            if (!hasRoom(entry)) {
                throw new PipeException("no room within " + deadline);
            }
            if (!faults.happens("entry lost")) {
                stored.add(entry);
                answer();
            }
        }

        private boolean hasRoom(Stored entry) {
            long used = stored.stream().mapToLong(Stored::bytes).sum();
            while (!stored.isEmpty()
                    && used + entry.bytes() > bufferBytes
                    && now() - stored.getFirst().since() > KEEP.toNanos()) {
                used -= stored.removeFirst().bytes();
            }
            return used + entry.bytes() <= bufferBytes;
        }

        private void received(ByteBuffer message) {
            byte kind = message.get();
            int number = message.getInt();
            if (kind == CANCEL) {
                waiting.remove(number);
            } else {
                int[] tokens = new int[message.remaining() / Integer.BYTES];
                message.asIntBuffer().get(tokens);
                waiting.put(number, tokens);
                answer();
            }
        }

        private void answer() {
            for (Iterator<Map.Entry<Integer, int[]>> each = waiting.entrySet().iterator(); each.hasNext(); ) {
                Map.Entry<Integer, int[]> lookup = each.next();
                Optional<Stored> found = stored.stream()
                        .filter(entry -> matches(entry.tokens(), lookup.getValue()))
                        .findFirst();
                if (found.isPresent()) {
                    each.remove();
                    stored.remove(found.get());
                    send(message(
                            found.get().kind(), lookup.getKey(), found.get().tokens()));
                    found.get().parts().forEach(this::send);
                }
            }
        }

        private void send(byte[] message) {
            connection.send(connection.producer, connection.consumer, message);
        }

        private static boolean matches(int[] entry, int[] lookup) {
            int shorter = Math.min(entry.length, lookup.length);
            return Arrays.equals(entry, 0, shorter, lookup, 0, shorter);
        }

        @Override
        public Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) {
            throw new UnsupportedOperationException("this end only inserts");
        }

        @Override
        public void close() {
            connection.end();
        }
    }

    /** The consumer's end: asks and waits for entries. */
    private final class LookingUp implements LookupBuffer {
        private static final int PARTS = 3;

        private final Connection connection;
        private final Map<Integer, Answer> lookups = new LinkedHashMap<>();
        private int numbers;

        /** The entry that is being received; its lookup may have been cancelled. */
        private Answer receiving = new Answer();

        /** The received part of a lookup's answer. */
        private static final class Answer {
            private int[] tokens = new int[0];
            private boolean never;
            private final List<byte[]> parts = new ArrayList<>();

            private boolean isComplete() {
                return never || parts.size() == PARTS;
            }
        }

        private LookingUp(Connection connection) {
            this.connection = connection;
        }

        @Override
        public Optional<Entry> dropSelect(int[] tokens, boolean[] roi, Duration timeout) throws PipeException {
            Deadline deadline = Deadline.after(site.ticker(), timeout);
            int number = numbers++;
            Answer answer = new Answer();
            lookups.put(number, answer);
            send(message(SELECT, number, tokens));
            connection.await(connection.consumer, deadline, answer::isComplete);
            lookups.remove(number);
            if (answer.isComplete()) {
                return answer.never ? Optional.empty() : Optional.of(taken(answer));
            }
            connection.requireUp();
            send(message(CANCEL, number, new int[0]));
            throw new PipeException("no entry within " + deadline);
        }

        private void send(byte[] message) {
            connection.send(connection.consumer, connection.producer, message);
        }

        private static Entry taken(Answer answer) {
            boolean[] roi = new boolean[answer.tokens.length];
            Arrays.fill(roi, true);
            return new Entry(
                    answer.tokens,
                    roi,
                    tensor(answer.parts.get(0)),
                    tensor(answer.parts.get(1)),
                    tensor(answer.parts.get(2)));
        }

        private void received(ByteBuffer message) {
            message.mark();
            byte kind = message.get();
            if (kind == PART) {
                message.reset();
                byte[] part = new byte[message.remaining()];
                message.get(part);
                receiving.parts.add(part);
                return;
            }
            Answer answer = Optional.ofNullable(lookups.get(message.getInt())).orElseGet(Answer::new);
            if (kind == NEVER) {
                answer.never = true;
            } else {
                answer.tokens = new int[message.remaining() / Integer.BYTES];
                message.asIntBuffer().get(answer.tokens);
                receiving = answer;
            }
        }

        @Override
        public void insert(Entry entry, Duration timeout) {
            throw new UnsupportedOperationException("this end only looks up");
        }

        @Override
        public void insertNever(int[] tokens, boolean[] roi, Duration timeout) {
            throw new UnsupportedOperationException("this end only looks up");
        }

        @Override
        public void close() {
            connection.end();
        }
    }
}
