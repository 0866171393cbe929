package baton.transfer.embedded;

import baton.messages.PeerSecret;
import baton.transfer.Digests;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.io.EOFException;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A connection to a peer: one thread receives, one sends. Who opened it asks, who accepted it serves.
 *
 * <p>The channel never blocks. Each thread waits with a selector of its own, outside of any gate.
 */
final class Connection {
    private static final Logger LOG = LoggerFactory.getLogger(Connection.class);
    private static final int FRAMES_AT_ONCE = 64;
    /** A peer that stays silent is asked this often before it is taken for dead. */
    private static final int PINGS = 4;

    /** What a proof is of: the connecting agent, and the one that it connects to. */
    private static final String CONNECTING = "transfer agent, connecting";

    private static final String CONNECTED = "transfer agent, connected";

    private static final Duration GOODBYE = Duration.ofSeconds(1);
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final EmbeddedAgent agent;
    private final EmbeddedAgent.Limits limits;
    private final SocketChannel channel;
    private final boolean asks;
    private final long pingMillis;
    private final Selector readable;
    private final Selector writable;
    private final ByteBuffer header = ByteBuffer.allocateDirect(Frame.HEADER_BYTES);
    private final ByteBuffer scratch = ByteBuffer.allocateDirect(64 << 10);
    /** Set by the greeting, before any other thread sees this. */
    private @Nullable Metadata peer;

    private @Nullable PeerMemory memory;
    private volatile boolean writesMapped = true;
    private volatile @Nullable Thread reader;

    /** Guards what follows. */
    private final Object monitor = new Object();

    private final Deque<ByteBuffer> frames = new ArrayDeque<>();
    private long framesBytes;
    private boolean sending;
    private final Deque<Exchange> streams = new ArrayDeque<>();
    private final Map<Long, Exchange> exchanges = new HashMap<>();
    private long lastId;
    private long servedRanges;
    private boolean closing;
    private boolean ended;

    /** @param asks whether we opened it */
    Connection(EmbeddedAgent agent, SocketChannel channel, boolean asks) throws IOException {
        this.agent = agent;
        this.limits = agent.settings().limits();
        this.channel = channel;
        this.asks = asks;
        this.pingMillis = agent.settings().silence().toMillis() / PINGS;
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        this.readable = Selector.open();
        try {
            this.writable = Selector.open();
        } catch (IOException e) {
            readable.close();
            throw e;
        }
        channel.register(readable, SelectionKey.OP_READ);
        channel.register(writable, 0);
    }

    EmbeddedAgent agent() {
        return agent;
    }

    String peerName() {
        return metadata().name();
    }

    private Metadata metadata() {
        if (peer == null) {
            throw new IllegalStateException("nobody was greeted yet");
        }
        return peer;
    }

    private PeerMemory memory() {
        if (memory == null) {
            throw new IllegalStateException("nobody was greeted yet");
        }
        return memory;
    }

    boolean isOpen() {
        synchronized (monitor) {
            return !ended && !closing;
        }
    }

    // Greeting

    /** Asks to be let in. */
    void greet(Metadata wanted, Frame.Hello hello, long deadline) throws IOException, TransferException {
        try {
            meet(wanted);
            write(hello, deadline);
            if (agent.peerSecret().isPresent()) {
                prove(agent.peerSecret().get(), hello, deadline);
            }
            switch (answer(deadline)) {
                case Frame.Welcome() -> {}
                case Frame.Challenge _ ->
                    throw new TransferException("it asks for a secret, and there is no kv_auth_secret_file here");
                case Frame other ->
                    throw new TransferException("it answers " + other.getClass().getSimpleName());
            }
        } catch (IOException | TransferException | RuntimeException e) {
            abandon();
            throw e;
        }
    }

    /** The next frame of the agent that was called; throws if that refuses. */
    private Frame answer(long deadline) throws IOException, TransferException {
        Frame frame = receive(deadline);
        if (frame instanceof Frame.Refuse(String reason)) {
            throw new TransferException("it refuses: " + reason);
        }
        return frame;
    }

    private void write(Frame frame, long deadline) throws IOException {
        ByteBuffer out = frame.encode();
        while (out.hasRemaining()) {
            if (channel.write(out) == 0) {
                await(writable, SelectionKey.OP_WRITE, deadline);
            }
        }
    }

    /** Shows that it knows the secret, and is shown so. */
    private void prove(PeerSecret secret, Frame.Hello hello, long deadline) throws IOException, TransferException {
        byte[] nonce = switch (answer(deadline)) {
            case Frame.Challenge(byte[] drawn) -> drawn;
            default -> throw new TransferException("it does not know the secret of kv_auth_secret_file");
        };
        write(new Frame.Proof(secret.mac(CONNECTING, proven(hello, nonce))), deadline);
        switch (answer(deadline)) {
            case Frame.Proof(byte[] mac) when secret.isMac(mac, CONNECTED, proven(hello, nonce)) -> {}
            default -> throw new TransferException("it does not know the secret of kv_auth_secret_file");
        }
    }

    /**
     * Has the connecting agent show that it knows the secret.
     *
     * @return what this agent shows it so with, once it may come in
     */
    private Frame.Proof demandProof(PeerSecret secret, Frame.Hello hello, long deadline)
            throws IOException, TransferException {
        byte[] nonce = PeerSecret.nonce();
        write(new Frame.Challenge(nonce), deadline);
        Frame answer;
        try {
            answer = receive(deadline);
        } catch (IOException e) {
            throw new TransferException("it does not show that it knows the secret: " + e.getMessage(), e);
        }
        if (!(answer instanceof Frame.Proof(byte[] mac)) || !secret.isMac(mac, CONNECTING, proven(hello, nonce))) {
            throw new TransferException("it does not show that it knows the secret of kv_auth_secret_file");
        }
        return new Frame.Proof(secret.mac(CONNECTED, proven(hello, nonce)));
    }

    private static byte[][] proven(Frame.Hello hello, byte[] nonce) {
        return new byte[][] {hello.secret(), nonce, hello.name().getBytes(StandardCharsets.UTF_8), hello.metadata()};
    }

    /** Lets in who connects, or not. */
    void receiveGreeting(long deadline) throws IOException, TransferException {
        try {
            if (!(receive(deadline) instanceof Frame.Hello hello)) {
                throw new TransferException("who connects does not introduce itself");
            }
            try {
                // A stranger is not even told this agent's name.
                Optional<Frame.Proof> own = Optional.empty();
                if (agent.peerSecret().isPresent()) {
                    own = Optional.of(demandProof(agent.peerSecret().get(), hello, deadline));
                }
                Metadata asking = Metadata.parse(hello.metadata());
                agent.admit(hello);
                if (own.isPresent()) {
                    write(own.get(), deadline);
                }
                meet(asking);
                updateMemory(new Metadata.Update(asking.revision(), asking.regions()));
            } catch (TransferException e) {
                agent.refuse(String.valueOf(channel.getRemoteAddress()), String.valueOf(e.getMessage()));
                channel.write(new Frame.Refuse(String.valueOf(e.getMessage())).encode());
                throw e;
            }
            // The few bytes so far always fit.
            channel.write(new Frame.Welcome().encode());
        } catch (IOException | TransferException | RuntimeException e) {
            abandon();
            throw e;
        }
    }

    private void meet(Metadata metadata) {
        peer = metadata;
        memory = new PeerMemory(metadata, agent.sharesMemoryWith(metadata), agent.mappedBytes());
    }

    private Frame receive(long deadline) throws IOException, TransferException {
        fill(header.clear(), deadline);
        Frame.Header head = Frame.header(header.flip(), limits);
        if (head.type() == Frame.DATA) {
            throw new TransferException("it sends data");
        }
        ByteBuffer payload = ByteBuffer.allocate(head.length());
        fill(payload, deadline);
        return Frame.decode(head, payload.flip());
    }

    private void fill(ByteBuffer in, long deadline) throws IOException {
        while (in.hasRemaining()) {
            int count = channel.read(in);
            if (count < 0) {
                throw new EOFException("it closed the connection");
            }
            if (count == 0) {
                await(readable, SelectionKey.OP_READ, deadline);
            }
        }
    }

    private void await(Selector selector, int interest, long deadline) throws IOException {
        long millis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
        if (millis <= 0) {
            throw new IOException("it did not answer in time");
        }
        selector.keys().forEach(key -> key.interestOps(interest));
        selector.select(_ -> {}, millis);
    }

    /** Ends it before it has begun. */
    void abandon() throws IOException {
        if (memory != null) {
            memory.giveUp().forEach(PeerMemory.Mapped::close);
        }
        channel.close();
        readable.close();
        writable.close();
    }

    // Threads

    /** Receives and sends from now on, on threads of its own. */
    void start() {
        Thread.ofPlatform().daemon().name("transfer-read-" + agent.name()).start(this::serve);
    }

    /** Receives, on this thread, until the connection ends. */
    void serve() {
        reader = Thread.currentThread();
        Thread.ofPlatform().daemon().name("transfer-write-" + agent.name()).start(this::send);
        try {
            while (true) {
                fill(header.clear());
                Frame.Header head = Frame.header(header.flip(), limits);
                if (head.type() == Frame.DATA) {
                    receiveData(head.id(), head.length());
                } else {
                    ByteBuffer payload = head.length() == 0 ? NOTHING.duplicate() : ByteBuffer.allocate(head.length());
                    fill(payload);
                    handle(Frame.decode(head, payload.flip()));
                }
            }
        } catch (TransferException e) {
            LOG.warn("transfer agent {} disconnects {}: {}", agent.name(), peerName(), e.getMessage());
            end("the connection was broken off: " + e.getMessage());
        } catch (IOException | ClosedSelectorException e) {
            end("the connection ended: " + e.getMessage());
        } catch (RuntimeException | Error e) {
            LOG.error("transfer agent {} disconnects {}", agent.name(), peerName(), e);
            end("the connection was broken off: " + e);
        } finally {
            closeSelector(readable);
        }
    }

    private void fill(ByteBuffer in) throws IOException {
        while (in.hasRemaining()) {
            took(channel.read(in));
        }
    }

    /** Waits if nothing was there. */
    private void took(long count) throws IOException {
        if (count < 0) {
            throw new EOFException("the peer closed it");
        }
        if (count == 0) {
            for (int silent = 0; readable.select(_ -> {}, pingMillis) == 0; silent++) {
                if (!channel.isOpen()) {
                    throw new ClosedChannelException();
                }
                // Counted and not timed: a process that was stopped has to find out first what has arrived meanwhile.
                if (silent == PINGS) {
                    throw new IOException("the peer is silent");
                }
                send(new Frame.Ping());
            }
        }
    }

    private void receiveData(long id, int length) throws IOException, TransferException {
        Exchange exchange;
        synchronized (monitor) {
            exchange = exchanges.get(id);
        }
        long left = length;
        if (exchange != null) {
            if (!exchange.receives || exchange.cursor.left() < length) {
                throw new TransferException("it sends %d bytes of a transfer that lacks %d"
                        .formatted(length, exchange.receives ? exchange.cursor.left() : 0));
            }
            while (left > 0 && exchange.enter()) {
                long count;
                try {
                    count = channel.read(exchange.cursor.next(left));
                    if (count > 0) {
                        exchange.cursor.advance(count);
                        left -= count;
                    }
                } finally {
                    exchange.exit();
                }
                took(count);
            }
        }
        // What is left is of a transfer that is over.
        while (left > 0) {
            scratch.clear().limit((int) Math.min(left, scratch.capacity()));
            int count = channel.read(scratch);
            left -= Math.max(count, 0);
            took(count);
        }
        if (exchange != null && !asks && exchange.cursor.left() == 0) {
            exchange.succeed();
        }
    }

    private void send() {
        try {
            ByteBuffer zeros = ByteBuffer.allocateDirect(64 << 10);
            while (true) {
                List<ByteBuffer> now = new ArrayList<>();
                Exchange stream = null;
                synchronized (monitor) {
                    if (ended) {
                        return;
                    }
                    while (!frames.isEmpty() && now.size() < FRAMES_AT_ONCE) {
                        now.add(frames.remove());
                    }
                    if (now.isEmpty()) {
                        stream = streams.poll();
                    }
                    sending = !now.isEmpty() || stream != null;
                    if (!sending) {
                        monitor.notifyAll();
                    }
                }
                if (stream != null) {
                    sendData(stream, zeros);
                } else if (now.isEmpty()) {
                    writable.select(_ -> {});
                } else {
                    sendFrames(now.toArray(ByteBuffer[]::new));
                }
            }
        } catch (IOException | ClosedSelectorException e) {
            end("the connection ended: " + e.getMessage());
        } catch (RuntimeException | Error e) {
            LOG.error("transfer agent {} disconnects {}", agent.name(), peerName(), e);
            end("the connection was broken off: " + e);
        } finally {
            closeSelector(writable);
        }
    }

    private void sendFrames(ByteBuffer[] now) throws IOException {
        long bytes = 0;
        for (ByteBuffer each : now) {
            bytes += each.remaining();
        }
        for (long left = bytes; left > 0; ) {
            long count = channel.write(now);
            left -= count;
            gave(count);
        }
        synchronized (monitor) {
            framesBytes -= bytes;
        }
    }

    /** Sends the next frame of a stream. */
    private void sendData(Exchange stream, ByteBuffer zeros) throws IOException {
        int length = (int) Math.min(stream.cursor.left(), Frame.MOST_DATA_BYTES);
        ByteBuffer head = Frame.dataHeader(stream.id, length);
        long left = length;
        while (left > 0 && stream.enter()) {
            long count;
            try {
                long before = head.remaining();
                count = channel.write(stream.cursor.next(left, head));
                long data = count - (before - head.remaining());
                stream.cursor.advance(data);
                left -= data;
            } finally {
                stream.exit();
            }
            gave(count);
        }
        // A frame whose transfer has ended meanwhile is sent to its end, with nothing in it.
        while (left > 0 && head.remaining() < Frame.HEADER_BYTES) {
            zeros.clear().limit((int) Math.min(left, zeros.capacity()));
            long before = head.remaining();
            long count = channel.write(new ByteBuffer[] {head, zeros});
            left -= count - (before - head.remaining());
            gave(count);
        }
        if (stream.cursor.left() > 0) {
            synchronized (monitor) {
                if (stream.equals(exchanges.get(stream.id))) {
                    streams.add(stream);
                }
            }
        } else if (!asks) {
            stream.succeed();
        }
    }

    private void gave(long count) throws IOException {
        if (count == 0) {
            SelectionKey key = channel.keyFor(writable);
            if (key == null) {
                throw new ClosedChannelException();
            }
            try {
                key.interestOps(SelectionKey.OP_WRITE);
                // Wake-ups for new frames come here too, so that time has to be looked at; in steps, as above.
                for (int stuck = 0; ; ) {
                    long begun = System.nanoTime();
                    if (writable.select(_ -> {}, pingMillis) > 0) {
                        break;
                    }
                    if (!channel.isOpen()) {
                        throw new ClosedChannelException();
                    }
                    if (System.nanoTime() - begun >= TimeUnit.MILLISECONDS.toNanos(pingMillis) && ++stuck > PINGS) {
                        throw new IOException("the peer takes nothing");
                    }
                }
            } finally {
                if (key.isValid()) {
                    key.interestOps(0);
                }
            }
        }
    }

    private static void closeSelector(Selector selector) {
        try {
            selector.close();
        } catch (IOException e) {
            LOG.debug("a selector did not close", e);
        }
    }

    // Sending

    /** Sends a frame after all that wait; lost if the connection has ended. */
    void send(Frame frame) {
        // Answers are bounded by what was asked; a peer that does not take them is not worth the memory.
        if (!enqueue(frame, 2 * limits.waitingBytes() + Metadata.MOST_BYTES)) {
            LOG.warn("transfer agent {} disconnects {}, which takes no answers", agent.name(), peerName());
            closeChannel();
        }
    }

    /** @throws TransferException if the connection has ended or too much waits */
    void sendMessage(byte[] message) throws TransferException {
        if (!isOpen()) {
            throw new TransferException("peer %s is gone".formatted(peerName()));
        }
        if (!enqueue(new Frame.Notify(message), limits.waitingBytes())) {
            throw new TransferException(
                    "more than %d bytes wait to be sent to %s".formatted(limits.waitingBytes(), peerName()));
        }
    }

    private boolean enqueue(Frame frame, long most) {
        ByteBuffer bytes = frame.encode();
        synchronized (monitor) {
            if (ended) {
                return true;
            }
            if (framesBytes + bytes.remaining() > most) {
                return false;
            }
            framesBytes += bytes.remaining();
            frames.add(bytes);
        }
        writable.wakeup();
        return true;
    }

    private void stream(Exchange exchange) {
        synchronized (monitor) {
            if (ended) {
                return;
            }
            streams.add(exchange);
        }
        writable.wakeup();
    }

    // Asking

    /**
     * Starts a transfer that we want.
     *
     * @param permit of a write; 0 for none
     */
    Transfer ask(
            Operation operation,
            long permit,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            Optional<Digests> digests) {
        long begun = System.nanoTime();
        Ours ours;
        List<Copier.Copy> copies = new ArrayList<>();
        boolean mapped;
        synchronized (agent.registry()) {
            Set<Object> touched = new HashSet<>();
            List<MemorySegment> local = new ArrayList<>(ranges.size());
            for (Range range : ranges) {
                Optional<MemorySegment> found = agent.local(range.local(), range.bytes(), touched);
                if (found.isEmpty()) {
                    return new EmbeddedAgent.Refused(
                            Cause.REFUSED, "%s: local is not registered memory of this process".formatted(range));
                }
                local.add(found.get());
            }
            mapped = switch (operation) {
                case READ -> find(ranges, local, touched, copies);
                case WRITE -> writesMapped && agent.sharesMemoryWith(metadata()) && agent.mappable(touched);
            };
            ours = new Ours(
                    operation,
                    permit,
                    ranges,
                    local,
                    touched,
                    notification,
                    !mapped && operation == Operation.READ,
                    begun,
                    timeout);
            agent.add(ours);
        }
        ours.begin();
        if (ranges.isEmpty()) {
            ours.succeed();
        } else if (mapped && operation == Operation.READ) {
            agent.copier().start(ours, copies, digests);
        } else {
            ours.request(mapped);
        }
        return ours;
    }

    /** Finds all ranges in the peer's mapped memory, or says that they are not there. */
    private boolean find(List<Range> ranges, List<MemorySegment> local, Set<Object> touched, List<Copier.Copy> copies) {
        Set<PeerMemory.Mapped> used = new HashSet<>();
        for (int i = 0; i < ranges.size(); i++) {
            Range range = ranges.get(i);
            Optional<PeerMemory.Mapped> region = memory().at(range.remote());
            Optional<MemorySegment> remote = region.flatMap(each -> each.slice(range.remote(), range.bytes()));
            if (remote.isEmpty()) {
                return false;
            }
            used.add(region.orElseThrow());
            copies.add(new Copier.Copy(remote.get(), local.get(i)));
        }
        touched.addAll(used);
        return true;
    }

    // Being told

    private void handle(Frame frame) throws TransferException {
        switch (frame) {
            case Frame.Ping() -> send(new Frame.Pong());
            case Frame.Pong() -> {}
            case Frame.Regions(Metadata.Update update) -> updateMemory(update);
            case Frame.Result(long id, Optional<Frame.Failure> failure) when asks -> result(id, failure);
            case Frame.Notify(byte[] message)
            when !asks -> {
                if (!agent.inbox().add(new Notification(peerName(), message))) {
                    throw new TransferException("it sends more notifications than are taken here");
                }
                agent.tellProgress();
            }
            case Frame.Read read when !asks -> serve(read);
            case Frame.Write write when !asks -> serve(write);
            case Frame.Cancel(long id)
            when !asks -> {
                Exchange exchange;
                synchronized (monitor) {
                    exchange = exchanges.get(id);
                }
                if (exchange != null) {
                    exchange.fail(Cause.CANCELLED, "cancelled by " + peerName());
                    if (exchange instanceof Served served && served.copied) {
                        // A copier may be within a piece: what the peer says next is true only when it is out.
                        exchange.awaitOver();
                    }
                }
            }
            case Frame other ->
                throw new TransferException(
                        "it says " + other.getClass().getSimpleName() + " where that makes no sense");
        }
    }

    /** Takes note of the peer's regions; what is under way with memory that is gone ends. */
    void updateMemory(Metadata.Update update) {
        List<PeerMemory.Mapped> gone = memory().update(update);
        if (!gone.isEmpty()) {
            agent.endAll(
                    moving -> gone.stream().anyMatch(moving::touches),
                    Cause.REFUSED,
                    "the peer closed its memory's registration");
            gone.forEach(PeerMemory.Mapped::close);
        }
    }

    private void result(long id, Optional<Frame.Failure> failure) throws TransferException {
        Exchange exchange;
        synchronized (monitor) {
            exchange = exchanges.get(id);
        }
        if (!(exchange instanceof Ours ours)) {
            return;
        }
        if (failure.isEmpty()) {
            if (ours.receives && ours.cursor.left() > 0) {
                throw new TransferException("it ends a transfer that lacks %d bytes".formatted(ours.cursor.left()));
            }
            ours.succeed();
        } else if (failure.get().cause().isPresent()) {
            ours.fail(
                    failure.get().cause().get(),
                    peerName() + ": " + failure.get().message());
        } else if (ours.operation == Operation.WRITE && !ours.streamed) {
            writesMapped = false;
            ours.request(false);
        } else {
            throw new TransferException("it fails to map what it was not asked to map");
        }
    }

    private void serve(Frame.Read read) throws TransferException {
        admitRequest(read.id());
        List<MemorySegment> local = new ArrayList<>();
        Served served;
        synchronized (agent.registry()) {
            Set<Object> touched = new HashSet<>();
            for (int i = 0; i < read.ranges().length; i += 2) {
                long address = read.ranges()[i];
                Optional<MemorySegment> found = agent.local(address, read.ranges()[i + 1], touched);
                if (found.isEmpty()) {
                    refuse(read.id(), address, read.ranges()[i + 1]);
                    return;
                }
                local.add(found.get());
            }
            served = new Served(read.id(), local, touched, false, false, read.timeoutMillis());
            agent.add(served);
        }
        served.begin();
        if (local.isEmpty()) {
            served.succeed();
        } else {
            stream(served);
        }
    }

    private void serve(Frame.Write write) throws TransferException {
        admitRequest(write.id());
        List<MemorySegment> local = new ArrayList<>();
        List<Copier.Copy> copies = new ArrayList<>();
        Served served;
        synchronized (agent.registry()) {
            Set<Object> touched = new HashSet<>();
            Optional<Permits.Given> permit = agent.permits().of(write.permit());
            if (write.permit() != 0 && permit.isEmpty()) {
                refuse(
                        write.id(),
                        Cause.NOT_PERMITTED,
                        "permit %016x is closed, or is none of this agent".formatted(write.permit()));
                return;
            }
            touched.addAll(permit.stream().toList());
            long[] ranges = write.ranges();
            for (int i = 0; i < ranges.length; i += 3) {
                Optional<MemorySegment> found = agent.local(ranges[i + 1], ranges[i + 2], touched);
                if (found.isEmpty()) {
                    refuse(write.id(), ranges[i + 1], ranges[i + 2]);
                    return;
                }
                if (!permit.map(each -> each.holds(found.get())).orElse(!agent.needsPermit(found.get()))) {
                    refuse(
                            write.id(),
                            Cause.NOT_PERMITTED,
                            "%d bytes at %d need a permit, %s"
                                    .formatted(
                                            ranges[i + 2],
                                            ranges[i + 1],
                                            permit.isPresent()
                                                    ? "that of the write is for others"
                                                    : "the write has none"));
                    return;
                }
                local.add(found.get());
                if (write.mapped()) {
                    Optional<PeerMemory.Mapped> region = memory().at(ranges[i]);
                    long address = ranges[i];
                    long bytes = ranges[i + 2];
                    Optional<MemorySegment> source = region.flatMap(each -> each.slice(address, bytes));
                    if (source.isEmpty()) {
                        send(new Frame.Result(
                                write.id(), Optional.of(new Frame.Failure(Optional.empty(), "not mapped"))));
                        return;
                    }
                    touched.add(region.orElseThrow());
                    copies.add(new Copier.Copy(source.get(), found.get()));
                }
            }
            served = new Served(write.id(), local, touched, !write.mapped(), write.mapped(), write.timeoutMillis());
            agent.add(served);
            permit.ifPresent(Permits.Given::begin);
        }
        served.begin();
        if (local.isEmpty()) {
            served.succeed();
        } else if (write.mapped()) {
            agent.copier().start(served, copies);
        }
    }

    private void admitRequest(long id) throws TransferException {
        synchronized (monitor) {
            if (exchanges.containsKey(id)) {
                throw new TransferException("it asks twice with id=" + id);
            }
        }
    }

    private void refuse(long id, long address, long bytes) {
        refuse(id, Cause.REFUSED, "%d bytes at %d are not registered memory".formatted(bytes, address));
    }

    private void refuse(long id, Cause cause, String why) {
        send(new Frame.Result(id, Optional.of(new Frame.Failure(Optional.of(cause), why))));
    }

    // Ending

    /** Says goodbye: nothing new is begun, what is under way ends. */
    void beginClosing() {
        synchronized (monitor) {
            closing = true;
        }
        agent.endAll(
                moving -> moving instanceof Exchange each && each.link() == this,
                Cause.CANCELLED,
                "the peer was closed");
    }

    /** Ends the connection after what waits was sent, if the peer takes it within a second. */
    void close() {
        long deadline = System.nanoTime() + GOODBYE.toNanos();
        boolean interrupted = false;
        try {
            synchronized (monitor) {
                while (!ended && (sending || !frames.isEmpty())) {
                    long millis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                    if (millis <= 0) {
                        break;
                    }
                    monitor.wait(millis);
                }
            }
            if (channel.isOpen()) {
                // The peer answers with its own end; closing right away could destroy what is still on its way.
                channel.shutdownOutput();
                Thread receiving = reader;
                long millis = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (receiving != null && millis > 0) {
                    receiving.join(millis);
                }
            }
        } catch (InterruptedException _) {
            interrupted = true;
        } catch (IOException e) {
            LOG.debug("a connection to {} did not end in order", peerName(), e);
        }
        end("the connection was closed");
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void end(String why) {
        synchronized (monitor) {
            boolean first = !ended;
            ended = true;
            frames.clear();
            streams.clear();
            monitor.notifyAll();
            if (!first) {
                return;
            }
        }
        closeChannel();
        agent.ended(this);
        List<PeerMemory.Mapped> mapped = memory().giveUp();
        agent.endAll(
                moving -> moving instanceof Exchange each && each.link() == this,
                Cause.PEER_GONE,
                "peer %s: %s".formatted(peerName(), why));
        mapped.forEach(PeerMemory.Mapped::close);
    }

    private void closeChannel() {
        try {
            channel.close();
        } catch (IOException e) {
            LOG.debug("a connection to {} did not close", peerName(), e);
        }
        readable.wakeup();
        writable.wakeup();
    }

    @Override
    public String toString() {
        return peerName() + (memory().isEmpty() ? " over TCP" : " by shared memory");
    }

    /** Ranges that this connection moves, or has moved by the copier. */
    private abstract class Exchange extends Moving {
        final Cursor cursor;
        final boolean receives;
        private final int ranges;
        long id;

        Exchange(
                long id,
                List<MemorySegment> local,
                Set<Object> touched,
                boolean receives,
                long begun,
                Duration timeout) {
            super(touched, bytes(local), begun, timeout);
            this.id = id;
            this.ranges = local.size();
            this.cursor = new Cursor(local);
            this.receives = receives;
        }

        final Connection link() {
            return Connection.this;
        }

        /** Makes it known, or ends it at once if it must not be. */
        final void begin() {
            boolean gone;
            boolean tooMany;
            synchronized (monitor) {
                gone = ended || closing;
                tooMany =
                        exchanges.size() >= limits.transfers() || !asks && servedRanges + ranges > 4L * limits.ranges();
                if (asks) {
                    id = ++lastId;
                }
                if (!gone && !tooMany) {
                    exchanges.put(id, this);
                    servedRanges += ranges;
                }
            }
            if (gone) {
                fail(Cause.PEER_GONE, "peer %s is gone".formatted(peerName()));
            } else if (tooMany) {
                fail(Cause.REFUSED, "%d transfers are under way, no more are allowed".formatted(limits.transfers()));
            } else if (ended()) {
                // Before it was known.
                forget();
            }
        }

        final void forget() {
            synchronized (monitor) {
                if (exchanges.remove(id, this)) {
                    servedRanges -= ranges;
                }
                streams.remove(this);
            }
            agent.remove(this);
        }

        private static long bytes(List<MemorySegment> ranges) {
            long bytes = 0;
            for (MemorySegment each : ranges) {
                bytes += each.byteSize();
            }
            return bytes;
        }
    }

    /** A transfer of ours. */
    private final class Ours extends Exchange implements Transfer {
        private final Operation operation;
        private final long permit;
        private final List<Range> ranges;
        private final Optional<byte[]> notification;
        private volatile boolean asked;
        /** The connection moves the bytes. */
        private volatile boolean streamed;

        private volatile State state = new State.UnderWay();

        private Ours(
                Operation operation,
                long permit,
                List<Range> ranges,
                List<MemorySegment> local,
                Set<Object> touched,
                Optional<byte[]> notification,
                boolean receives,
                long begun,
                Duration timeout) {
            super(0, local, touched, receives, begun, timeout);
            this.operation = operation;
            this.permit = permit;
            this.ranges = ranges;
            this.notification = notification;
        }

        /** Asks the peer to do its part. */
        private void request(boolean mapped) {
            streamed = !mapped;
            if (asked) {
                // A second try has an id of its own.
                synchronized (monitor) {
                    if (!exchanges.remove(id, this)) {
                        return;
                    }
                    id = ++lastId;
                    exchanges.put(id, this);
                }
            }
            int each = operation == Operation.READ ? 2 : 3;
            long[] wanted = new long[ranges.size() * each];
            for (int i = 0, at = 0; i < ranges.size(); i++) {
                Range range = ranges.get(i);
                if (operation == Operation.WRITE) {
                    wanted[at++] = range.local();
                }
                wanted[at++] = range.remote();
                wanted[at++] = range.bytes();
            }
            long millis = timeLeft().toMillis();
            Frame frame = operation == Operation.READ
                    ? new Frame.Read(id, millis, wanted)
                    : new Frame.Write(id, millis, permit, mapped, wanted);
            asked = true;
            if (!enqueue(frame, limits.waitingBytes())) {
                fail(Cause.TRANSPORT, "too much waits to be sent to " + peerName());
            } else if (streamed && operation == Operation.WRITE) {
                stream(this);
            }
            if (ended()) {
                // The peer may have been told so before it was asked.
                send(new Frame.Cancel(id));
            }
        }

        @Override
        void over(State end) {
            State last = end;
            forget();
            switch (end) {
                case State.Done _ -> {
                    if (notification.isPresent()) {
                        try {
                            sendMessage(notification.get());
                        } catch (TransferException e) {
                            last = new State.Failed(
                                    isOpen() ? Cause.TRANSPORT : Cause.PEER_GONE, String.valueOf(e.getMessage()));
                        }
                    }
                }
                case State.Failed _ -> {
                    if (asked) {
                        send(new Frame.Cancel(id));
                    }
                }
                case State.UnderWay _ -> throw new IllegalStateException("over and under way");
            }
            state = last;
            agent.tellProgress();
        }

        @Override
        public State state() {
            if (state instanceof State.UnderWay) {
                endIfLate();
            }
            return state;
        }

        @Override
        public void cancel() {
            fail(Cause.CANCELLED, "cancelled");
        }
    }

    /** What the peer has asked for. */
    private final class Served extends Exchange {
        /** By threads of this process, out of the peer's memory. */
        final boolean copied;

        private Served(
                long id,
                List<MemorySegment> local,
                Set<Object> touched,
                boolean receives,
                boolean copied,
                long timeoutMillis) {
            super(id, local, touched, receives, System.nanoTime(), Duration.ofMillis(Math.max(0, timeoutMillis)));
            this.copied = copied;
        }

        @Override
        void over(Transfer.State end) {
            forget();
            send(new Frame.Result(
                    id,
                    end instanceof Transfer.State.Failed(Cause cause, String message)
                            ? Optional.of(new Frame.Failure(Optional.of(cause), message))
                            : Optional.empty()));
        }
    }
}
