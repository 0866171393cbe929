package baton.connectors.pynccl;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.pipe.BuddyPool;
import baton.pipe.LookupBuffer;
import baton.pipe.LookupBuffers;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.TensorMemory;
import baton.pipe.Wire;
import baton.pipe.WirePipe;
import baton.pipe.WireTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * A session over two wires: on each both sides authenticate and compare their configurations first, then it carries a pipe, and
 * the pipes carry the lookup buffer. A thread of its own connects, and connects again when the connection is lost. Either side
 * may start first and restart.
 */
final class PeerSession implements LookupSession {
    private static final Logger log = LoggerFactory.getLogger(PeerSession.class);

    /** After this time both sides start again, so that they are at the same step sooner or later. */
    private static final Duration MEETING = Duration.ofSeconds(30);

    /** A peer that has connected one wire connects the other one at once. */
    private static final Duration SECOND_MEETING = Duration.ofSeconds(5);

    private static final Duration BETWEEN_TRIES = Duration.ofMillis(100);

    /** A peer with another configuration may be replaced by one that fits. */
    private static final Duration AFTER_MISFIT = Duration.ofSeconds(2);

    private static final Duration CLOSING = Duration.ofSeconds(5);

    private static final int HELLO_BYTES = 512;

    private final PyNcclSettings settings;
    private final WireTransport transport;
    private final Ticker ticker;
    private final int port;
    private final String fit;
    private final Level atMost;
    private final Thread thread;
    private Optional<LookupBuffer> buffer = Optional.empty();
    /** How long callers wait for a connection after the start, or after the last one was lost. */
    private Deadline reconnect;

    /** Counts connections: an earlier one's wire may end late, which is not the end of the current one. */
    private int connection;

    private boolean lost;
    private boolean closed;
    /** Bytes of a received tensor at most: this side never looks up more than its pool holds. */
    private long mostBytes;
    /** Memory of keys and values beside a device's pool. */
    private Optional<BuddyPool> onDevice = Optional.empty();

    /** Owned by the connecting thread. */
    private String lastFailure = "";

    /** Whether the peer's configuration does not fit. Owned by the connecting thread. */
    private boolean misfit;

    /**
     * @param transport is closed by the session
     * @param fit the configuration that both sides must have in common, as {@code name=value} words
     * @param atMost level at which connections and their ends are logged
     */
    PeerSession(PyNcclSettings settings, WireTransport transport, int port, String fit, Level atMost, Ticker ticker) {
        this.ticker = ticker;
        this.atMost = atMost;
        this.settings = settings;
        this.transport = transport;
        this.port = port;
        this.fit = fit;
        this.reconnect = Deadline.after(ticker, settings.connectWait());
        // A platform thread, because a transport may wait in native code.
        this.thread = Thread.ofPlatform().daemon().name("kv-session-" + port).unstarted(this::run);
    }

    @Override
    public TensorMemory start(KvMemory pool) {
        mostBytes = Math.max(settings.bufferBytes(), pool.bytes());
        if (pool instanceof KvMemory.Device device) {
            if (!transport.reaches(device.device())) {
                throw new ConfigException(
                        "kv_buffer_device",
                        "is not cpu, but transport=%s does not reach memory of %s: it must be cpu"
                                .formatted(transport.name(), device.device()));
            }
            BuddyPool beside = new BuddyPool(settings.bufferBytes());
            beside.prepare(Optional.of(device));
            onDevice = Optional.of(beside);
        }
        thread.start();
        return memory();
    }

    private TensorMemory memory() {
        return onDevice.<TensorMemory>map(beside -> beside).orElse(TensorMemory.HOST);
    }

    @Override
    public synchronized Optional<LookupBuffer> await(Duration timeout) {
        Deadline deadline = Deadline.after(ticker, timeout);
        try {
            while (buffer.isEmpty() && !closed && !deadline.isOver() && !reconnect.isOver()) {
                boolean unusedInTime = deadline.atMost(reconnect.remaining()).awaitNotify(this);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return buffer;
    }

    @Override
    public synchronized boolean isUp(LookupBuffer used) {
        return !lost && buffer.filter(used::equals).isPresent();
    }

    private void run() {
        while (!isClosed()) {
            Duration pause = BETWEEN_TRIES;
            misfit = false;
            try {
                connect();
                awaitLoss();
            } catch (PipeException e) {
                logFailure(e);
                pause = misfit ? AFTER_MISFIT : pause;
            } catch (InterruptedException e) {
                return;
            }
            drop();
            pause(pause);
        }
    }

    /** Logs equal failures in a row once. */
    private void logFailure(PipeException e) {
        String failure = String.valueOf(e.getMessage());
        if (!failure.equals(lastFailure) && !isClosed()) {
            log.atLevel(atMost)
                    .log("Not connected with the {} at {}:{}: {}", counterpart(), settings.host(), port, failure);
        }
        lastFailure = failure;
    }

    private String counterpart() {
        return settings.producer() ? "consumer" : "producer";
    }

    private void connect() throws PipeException {
        synchronized (this) {
            connection++;
            lost = false;
        }
        Wire requests = meet(port, MEETING);
        Wire answers;
        try {
            answers = meet(port + 1, SECOND_MEETING);
        } catch (PipeException e) {
            requests.close();
            throw e;
        }
        long pipeBytes = Math.clamp(settings.bufferBytes() / 4, 1, 256L << 20);
        WirePipe.Settings pipes = WirePipe.Settings.DEFAULT
                .withBufferBytes(pipeBytes)
                .withTensorBytes(mostBytes)
                .withSilence(settings.silence());
        LookupBuffer made = settings.producer()
                ? LookupBuffers.producer(
                        WirePipe.receiver(requests, pipes, ticker),
                        WirePipe.sender(answers, pipes, ticker),
                        new LookupBuffer.Settings(settings.bufferBytes(), settings.keep()),
                        ticker)
                : LookupBuffers.consumer(
                        WirePipe.sender(requests, pipes, ticker),
                        WirePipe.receiver(answers, pipes, ticker),
                        memory(),
                        ticker);
        synchronized (this) {
            if (!closed) {
                buffer = Optional.of(made);
                lastFailure = "";
                notifyAll();
                log.atLevel(atMost == Level.WARN ? Level.INFO : atMost)
                        .log(
                                "Connected with the {} over {} at {}:{}",
                                counterpart(),
                                transport.name(),
                                settings.host(),
                                port);
                return;
            }
        }
        made.close();
    }

    private Wire meet(int at, Duration timeout) throws PipeException {
        Wire wire = transport.meet(settings.host(), at, settings.rank(), timeout);
        try (Arena arena = Arena.ofConfined()) {
            authenticate(wire, arena);
            wire.send(hello(arena), SECOND_MEETING);
            MemorySegment received = arena.allocate(HELLO_BYTES);
            wire.receive(received, SECOND_MEETING);
            check(received);
            return new Watched(wire, connection);
        } catch (PipeException | RuntimeException e) {
            wire.close();
            throw e;
        }
    }

    /** Proves the secret, if there is one, in both directions before anything else is sent. */
    private void authenticate(Wire wire, Arena arena) throws PipeException {
        Optional<PeerSecret> known = settings.access().secret();
        if (known.isEmpty()) {
            return;
        }
        PeerSecret secret = known.get();
        byte[] own = PeerSecret.nonce();
        byte[] other = exchange(wire, arena, own);
        boolean first = settings.rank() == 0;
        byte[][] nonces = first ? new byte[][] {own, other} : new byte[][] {other, own};
        byte[] shown = exchange(wire, arena, secret.mac(purpose(settings.rank()), nonces));
        if (!secret.isMac(shown, purpose(1 - settings.rank()), nonces)) {
            settings.access()
                    .refuse(
                            "the " + counterpart() + " at " + settings.host() + ":" + port,
                            "it shows another secret, or none");
            throw new PipeException("the peer does not show that it knows the secret of kv_auth_secret_file");
        }
    }

    private static String purpose(int rank) {
        return "wire, rank " + rank;
    }

    private static byte[] exchange(Wire wire, Arena arena, byte[] own) throws PipeException {
        wire.send(arena.allocate(own.length).copyFrom(MemorySegment.ofArray(own)), SECOND_MEETING);
        MemorySegment received = arena.allocate(own.length);
        wire.receive(received, SECOND_MEETING);
        return received.toArray(ValueLayout.JAVA_BYTE);
    }

    private String greeting(boolean producer) {
        return "baton-pynccl-2 kv_role=%s %s".formatted(producer ? "kv_producer" : "kv_consumer", fit);
    }

    private MemorySegment hello(Arena arena) {
        byte[] text = greeting(settings.producer()).getBytes(StandardCharsets.UTF_8);
        return arena.allocate(HELLO_BYTES).copyFrom(MemorySegment.ofArray(Arrays.copyOf(text, HELLO_BYTES)));
    }

    private void check(MemorySegment received) throws PipeException {
        byte[] bytes = received.toArray(ValueLayout.JAVA_BYTE);
        String text = new String(bytes, StandardCharsets.UTF_8).replaceAll("[^ -~]", "");
        String wanted = greeting(!settings.producer());
        misfit = !text.equals(wanted);
        if (misfit) {
            throw new PipeException("the peer does not fit: it is '%s', must be '%s'".formatted(text, wanted));
        }
    }

    /** A wire that reports when it is closed, by this side or by its pipe because the peer has gone. */
    private final class Watched implements Wire {
        private final Wire wire;
        private final int of;

        private Watched(Wire wire, int of) {
            this.wire = wire;
            this.of = of;
        }

        @Override
        public void send(TensorBytes bytes, Duration timeout) throws PipeException {
            wire.send(bytes, timeout);
        }

        @Override
        public void receive(TensorBytes into, Duration timeout) throws PipeException {
            wire.receive(into, timeout);
        }

        @Override
        public void close() {
            wire.close();
            lost(of);
        }
    }

    private synchronized void lost(int which) {
        lost |= which == connection;
        notifyAll();
    }

    private synchronized void awaitLoss() throws InterruptedException {
        while (!lost && !closed) {
            // Woken by the end of a wire; the timeout only bounds the wait.
            TimeUnit.MINUTES.timedWait(this, 1);
        }
        if (!closed) {
            log.atLevel(atMost)
                    .log(
                            "The {} at {}:{} is gone; prompts are computed here until it is back",
                            counterpart(),
                            settings.host(),
                            port);
        }
    }

    private void drop() {
        Optional<LookupBuffer> gone;
        synchronized (this) {
            gone = buffer;
            buffer = Optional.empty();
            if (gone.isPresent()) {
                reconnect = Deadline.after(ticker, settings.connectWait());
            }
        }
        gone.ifPresent(LookupBuffer::close);
    }

    private synchronized void pause(Duration length) {
        boolean _ = Deadline.after(ticker, length).awaitUninterruptibly(this, this::isClosed);
    }

    private synchronized boolean isClosed() {
        return closed;
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        drop();
        thread.interrupt();
        transport.close();
        try {
            if (thread.isAlive() && !thread.join(CLOSING)) {
                log.error("The thread that connects at {}:{} has not ended within {}", settings.host(), port, CLOSING);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
