package baton.transfer.embedded;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.PeerAccess;
import baton.messages.SealedChannel;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.EOFException;
import java.io.IOException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.GatheringByteChannel;
import java.nio.channels.ScatteringByteChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A connection to a peer: its frames, the streams of bytes between them, and the transfers that they belong to. A reader thread
 * receives and handles frames, a writer thread sends. The {@link ConnectionSide} acts on the frames.
 *
 * <p>The channel never blocks. Each thread waits with a selector of its own, outside of any gate.
 */
final class Connection {
    private static final Logger LOG = LoggerFactory.getLogger(Connection.class);
    private static final int FRAMES_AT_ONCE = 64;
    /** A silent peer is pinged this often before it counts as dead. */
    private static final int PINGS = 4;

    private static final Duration GOODBYE = Duration.ofSeconds(1);
    private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

    private final EmbeddedAgent agent;
    private final EmbeddedAgent.Limits limits;
    private final Ticker ticker;
    private final SocketChannel channel;
    private final ConnectionSide side;
    private final long pingMillis;
    private final Selector readable;
    private final Selector writable;
    /** The channel, or the seal around it. */
    private ScatteringByteChannel source;

    private GatheringByteChannel sink;
    private final ByteBuffer header = ByteBuffer.allocateDirect(Frame.HEADER_BYTES);
    private final ByteBuffer scratch = ByteBuffer.allocateDirect(64 << 10);
    /** Set by the handshake, before any other thread sees this. */
    private @Nullable Metadata peer;

    private @Nullable PeerMemory memory;
    private volatile @Nullable Thread reader;

    @GuardedBy("this")
    private final Deque<ByteBuffer> frames = new ArrayDeque<>();

    @GuardedBy("this")
    private long framesBytes;

    /** The writer thread sends something that is in no queue any more. */
    @GuardedBy("this")
    private boolean sending;

    @GuardedBy("this")
    private final Deque<InFlightTransfer> streams = new ArrayDeque<>();

    @GuardedBy("this")
    private final Map<Long, InFlightTransfer> transfers = new HashMap<>();

    @GuardedBy("this")
    private long lastId;

    /** The number of ranges of all transfers of the connection. */
    @GuardedBy("this")
    private long ranges;

    @GuardedBy("this")
    private boolean closing;

    @GuardedBy("this")
    private boolean ended;

    /** @param initiates whether this process has opened it */
    Connection(EmbeddedAgent agent, SocketChannel channel, boolean initiates) throws IOException {
        this.agent = agent;
        this.limits = agent.settings().limits();
        this.ticker = agent.ticker();
        this.channel = channel;
        this.source = channel;
        this.sink = channel;
        this.side = initiates ? new Initiator(this) : new Responder(this);
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

    EmbeddedAgent.Limits limits() {
        return limits;
    }

    /** Starts transfers; this process has opened the connection. */
    Initiator initiator() {
        return switch (side) {
            case Initiator initiator -> initiator;
            case Responder _ -> throw new IllegalStateException("the peer opened this connection");
        };
    }

    void setPeer(Metadata metadata) {
        peer = metadata;
        memory = new PeerMemory(metadata, agent.sharesMemoryWith(metadata), agent.mappedBytes());
    }

    Metadata peer() {
        if (peer == null) {
            throw new IllegalStateException("the handshake is not done");
        }
        return peer;
    }

    String peerName() {
        return peer().name();
    }

    PeerMemory peerMemory() {
        if (memory == null) {
            throw new IllegalStateException("the handshake is not done");
        }
        return memory;
    }

    String remoteAddress() throws IOException {
        return String.valueOf(channel.getRemoteAddress());
    }

    synchronized boolean isOpen() {
        return !ended && !closing;
    }

    /** Seals the connection from here on if instances have a secret. */
    void seal(Deadline deadline) throws IOException {
        Optional<PeerAccess> guarded =
                agent.settings().access().filter(access -> access.secret().isPresent());
        if (guarded.isPresent()) {
            // Agents that do not agree on the encryption of blocks do not open each other's first record.
            String plane = guarded.get().sealing().isPresent() ? "transfer agent" : "transfer agent, plain blocks";
            SealedChannel sealing = new SealedChannel(
                    guarded.get(), plane, side instanceof Initiator, remoteAddress(), channel, channel);
            write(sealing.preamble(), deadline);
            ByteBuffer other = ByteBuffer.allocate(SealedChannel.PREAMBLE_BYTES);
            try {
                fill(other, deadline);
            } catch (EOFException e) {
                throw new IOException(SealedChannel.UNSEALED, e);
            }
            sealing.agree(other.flip());
            source = sealing;
            sink = sealing;
        }
    }

    /** After the handshake, at a boundary of records of both directions: unseals the connection if blocks are not to be encrypted. */
    void unsealUnlessRequired() {
        if (agent.settings().access().flatMap(PeerAccess::sealing).isEmpty()) {
            source = channel;
            sink = channel;
        }
    }

    /** Whether the channel has taken all that was written; false where the rest of a sealed record waits. */
    private boolean isSent() throws IOException {
        return !(sink instanceof SealedChannel sealed) || sealed.flush();
    }

    /** Sends a frame of the handshake. */
    void write(Frame frame, Deadline deadline) throws IOException {
        write(frame.encode(), deadline);
    }

    private void write(ByteBuffer out, Deadline deadline) throws IOException {
        while (out.hasRemaining() || !isSent()) {
            if (sink.write(out) == 0) {
                await(writable, SelectionKey.OP_WRITE, deadline);
            }
        }
    }

    /** Sends a refusal of the handshake, without waiting: the few bytes so far always fit into the socket's buffer. */
    void refuse(String reason) throws IOException {
        sink.write(new Frame.Refuse(reason).encode());
    }

    /** Receives a frame of the handshake. */
    Frame receive(Deadline deadline) throws IOException, TransferException {
        fill(header.clear(), deadline);
        Frame.Header head = Frame.header(header.flip(), limits);
        if (head.type() == Frame.DATA) {
            throw new TransferException("it sends data");
        }
        ByteBuffer payload = ByteBuffer.allocate(head.length());
        fill(payload, deadline);
        return Frame.decode(head, payload.flip());
    }

    private void fill(ByteBuffer in, Deadline deadline) throws IOException {
        while (in.hasRemaining()) {
            int count = source.read(in);
            if (count < 0) {
                throw new EOFException("it closed the connection");
            }
            if (count == 0) {
                await(readable, SelectionKey.OP_READ, deadline);
            }
        }
    }

    private static void await(Selector selector, int interest, Deadline deadline) throws IOException {
        if (deadline.isOver()) {
            throw new IOException("it did not answer in time");
        }
        selector.keys().forEach(key -> key.interestOps(interest));
        selector.select(_ -> {}, deadline.remainingMillis());
    }

    /** Closes it before its threads were started. */
    void abandon() throws IOException {
        if (memory != null) {
            memory.giveUp().forEach(PeerMemory.Mapped::close);
        }
        channel.close();
        readable.close();
        writable.close();
    }

    /** Receives and sends from now on, on threads of its own. */
    void start() {
        Thread.ofPlatform().daemon().name("transfer-read-" + agent.name()).start(this::run);
    }

    /** Receives, on this thread, until the connection ends, and sends on another one. */
    void run() {
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
            agent.complaints()
                    .event(more -> LOG.warn(
                            "transfer agent {} disconnects {}: {}{}", agent.name(), peerName(), e.getMessage(), more));
            end("the connection was broken off: " + e.getMessage());
        } catch (IOException | ClosedSelectorException e) {
            end("the connection ended: " + e.getMessage());
        } catch (RuntimeException | Error e) {
            agent.complaints()
                    .event(more -> LOG.error("transfer agent {} disconnects {}{}", agent.name(), peerName(), more, e));
            end("the connection was broken off: " + e);
        } finally {
            Closing.quietly(readable);
        }
    }

    private void handle(Frame frame) throws TransferException {
        switch (frame) {
            case Frame.Ping() -> send(new Frame.Pong());
            case Frame.Pong() -> {}
            case Frame.Regions(Metadata.Update update) -> updateMemory(update);
            default -> side.handle(frame);
        }
    }

    /** Maps the peer's regions as they are now; transfers with memory that is gone end. */
    void updateMemory(Metadata.Update update) {
        List<PeerMemory.Mapped> gone = peerMemory().update(update);
        if (!gone.isEmpty()) {
            agent.registry()
                    .endAll(
                            transfer -> gone.stream().anyMatch(transfer::touches),
                            Cause.REFUSED,
                            "the peer closed its memory's registration");
            gone.forEach(PeerMemory.Mapped::close);
        }
    }

    private void fill(ByteBuffer in) throws IOException {
        while (in.hasRemaining()) {
            awaitReadable(source.read(in));
        }
    }

    /** @param count bytes that were just read; waits if there were none */
    private void awaitReadable(long count) throws IOException {
        if (count < 0) {
            throw new EOFException("the peer closed it");
        }
        if (count == 0) {
            for (int silent = 0; readable.select(_ -> {}, pingMillis) == 0; silent++) {
                if (!channel.isOpen()) {
                    throw new ClosedChannelException();
                }
                // Counted and not timed: a process that was stopped has to read the frames that have arrived meanwhile
                // first.
                if (silent == PINGS) {
                    throw new IOException("the peer is silent");
                }
                send(new Frame.Ping());
            }
        }
    }

    private void receiveData(long id, int length) throws IOException, TransferException {
        InFlightTransfer transfer = transfer(id).orElse(null);
        long left = length;
        if (transfer != null) {
            long lacks = transfer.receives() ? transfer.cursor().left() : 0;
            if (lacks < length || !transfer.receives()) {
                throw new TransferException("it sends %d bytes of a transfer that lacks %d".formatted(length, lacks));
            }
            while (left > 0 && transfer.enter()) {
                long count;
                try {
                    count = source.read(transfer.cursor().next(left));
                    if (count > 0) {
                        transfer.cursor().advance(count);
                        left -= count;
                    }
                } finally {
                    transfer.exit();
                }
                awaitReadable(count);
            }
        }
        // The rest is of a transfer that is over.
        while (left > 0) {
            scratch.clear().limit((int) Math.min(left, scratch.capacity()));
            int count = source.read(scratch);
            left -= Math.max(count, 0);
            awaitReadable(count);
        }
        if (transfer != null && transfer.cursor().left() == 0) {
            transfer.streamed();
        }
    }

    private void send() {
        try {
            ByteBuffer zeros = ByteBuffer.allocateDirect(64 << 10);
            while (true) {
                List<ByteBuffer> now = new ArrayList<>();
                InFlightTransfer stream = null;
                synchronized (this) {
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
                        notifyAll();
                    }
                }
                if (stream != null) {
                    sendData(stream, zeros);
                } else if (now.isEmpty()) {
                    // Without a deadline: a frame, a stream and the end of the connection each wake it up.
                    writable.select(_ -> {});
                } else {
                    sendFrames(now.toArray(ByteBuffer[]::new));
                }
            }
        } catch (IOException | ClosedSelectorException e) {
            end("the connection ended: " + e.getMessage());
        } catch (RuntimeException | Error e) {
            agent.complaints()
                    .event(more -> LOG.error("transfer agent {} disconnects {}{}", agent.name(), peerName(), more, e));
            end("the connection was broken off: " + e);
        } finally {
            Closing.quietly(writable);
        }
    }

    private void sendFrames(ByteBuffer[] now) throws IOException {
        long bytes = 0;
        for (ByteBuffer each : now) {
            bytes += each.remaining();
        }
        for (long left = bytes; left > 0; ) {
            long count = sink.write(now);
            left -= count;
            awaitWritable(count);
        }
        synchronized (this) {
            framesBytes -= bytes;
        }
    }

    /** Sends the next frame of a stream. */
    private void sendData(InFlightTransfer stream, ByteBuffer zeros) throws IOException {
        int length = (int) Math.min(stream.cursor().left(), Frame.MOST_DATA_BYTES);
        ByteBuffer head = Frame.dataHeader(stream.id(), length);
        long left = length;
        while (left > 0 && stream.enter()) {
            long count;
            try {
                long before = head.remaining();
                count = sink.write(stream.cursor().next(left, head));
                long data = count - (before - head.remaining());
                stream.cursor().advance(data);
                left -= data;
            } finally {
                stream.exit();
            }
            awaitWritable(count);
        }
        // If the transfer has ended meanwhile, the rest of a frame that was begun is filled with zeros.
        while (left > 0 && head.remaining() < Frame.HEADER_BYTES) {
            zeros.clear().limit((int) Math.min(left, zeros.capacity()));
            long before = head.remaining();
            long count = sink.write(new ByteBuffer[] {head, zeros});
            left -= count - (before - head.remaining());
            awaitWritable(count);
        }
        if (stream.cursor().left() > 0) {
            synchronized (this) {
                if (stream.equals(transfers.get(stream.id()))) {
                    streams.add(stream);
                }
            }
        } else {
            stream.streamed();
        }
    }

    /** @param count bytes that were just written; waits if there were none, or until a sealed record is sent */
    private void awaitWritable(long count) throws IOException {
        if (count == 0 || !isSent()) {
            SelectionKey key = channel.keyFor(writable);
            if (key == null) {
                throw new ClosedChannelException();
            }
            try {
                key.interestOps(SelectionKey.OP_WRITE);
                // Wake-ups for new frames come here too, so that time has to be looked at; in steps, as in
                // awaitReadable.
                for (int stuck = 0; ; ) {
                    long begun = ticker.nanos();
                    if (writable.select(_ -> {}, pingMillis) > 0 && isSent()) {
                        break;
                    }
                    if (!channel.isOpen()) {
                        throw new ClosedChannelException();
                    }
                    if (ticker.nanos() - begun >= TimeUnit.MILLISECONDS.toNanos(pingMillis) && ++stuck > PINGS) {
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

    /** Sends a frame after all that are queued; lost if the connection has ended. */
    void send(Frame frame) {
        // Answers are bounded by the peer's requests; a peer that does not take them is disconnected, to bound the
        // queue.
        if (!enqueue(frame, 2 * limits.waitingBytes() + Metadata.MOST_BYTES)) {
            agent.complaints()
                    .event(more -> LOG.warn(
                            "transfer agent {} disconnects {}, which takes no answers{}",
                            agent.name(),
                            peerName(),
                            more));
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

    /** @return false if more than {@code most} bytes would wait; true and nothing done if the connection has ended */
    boolean enqueue(Frame frame, long most) {
        ByteBuffer bytes = frame.encode();
        synchronized (this) {
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

    /** Sends a transfer's bytes, in turns with other streams. */
    void stream(InFlightTransfer transfer) {
        synchronized (this) {
            if (ended) {
                return;
            }
            streams.add(transfer);
        }
        writable.wakeup();
    }

    /** Whether the connection takes a transfer. */
    enum Admission {
        ADMITTED,
        /** The connection has ended or is about to. */
        GONE,
        TOO_MANY
    }

    /** Enters a transfer into the table of those under way; one that this process has started gets its id. */
    synchronized Admission admit(InFlightTransfer transfer) {
        boolean inbound = transfer instanceof InboundTransfer;
        if (!inbound) {
            transfer.setId(++lastId);
        }
        if (ended || closing) {
            return Admission.GONE;
        }
        if (transfers.size() >= limits.transfers() || inbound && ranges + transfer.ranges() > 4L * limits.ranges()) {
            return Admission.TOO_MANY;
        }
        transfers.put(transfer.id(), transfer);
        ranges += transfer.ranges();
        return Admission.ADMITTED;
    }

    /** Gives a transfer another id; false if it is not in the table any more. */
    synchronized boolean renumber(OutboundTransfer transfer) {
        if (!transfers.remove(transfer.id(), transfer)) {
            return false;
        }
        transfer.setId(++lastId);
        transfers.put(transfer.id(), transfer);
        return true;
    }

    /** The transfer under way that has this id. */
    synchronized Optional<InFlightTransfer> transfer(long id) {
        return Optional.ofNullable(transfers.get(id));
    }

    synchronized void forget(InFlightTransfer transfer) {
        if (transfers.remove(transfer.id(), transfer)) {
            ranges -= transfer.ranges();
        }
        streams.remove(transfer);
    }

    /** Begins no transfer any more and ends those that are under way. */
    void beginClosing() {
        synchronized (this) {
            closing = true;
        }
        endTransfers(Cause.CANCELLED, "the peer was closed");
    }

    private void endTransfers(Cause cause, String message) {
        agent.registry().endAll(transfer -> transfer.connection() == this, cause, message);
    }

    /** Ends the connection after its queued frames were sent, if the peer takes them within a second. */
    void close() {
        Deadline deadline = Deadline.after(ticker, GOODBYE);
        boolean interrupted = false;
        try {
            synchronized (this) {
                while (!ended && (sending || !frames.isEmpty()) && deadline.awaitNotify(this)) {
                    // Until all is sent, or time is up.
                }
            }
            if (channel.isOpen()) {
                // The peer answers with its own end; closing right away could destroy bytes on their way.
                channel.shutdownOutput();
                Thread receiving = reader;
                if (receiving != null && !deadline.isOver()) {
                    receiving.join(deadline.remainingMillis());
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
        synchronized (this) {
            boolean first = !ended;
            ended = true;
            frames.clear();
            streams.clear();
            notifyAll();
            if (!first) {
                return;
            }
        }
        closeChannel();
        agent.ended(this);
        List<PeerMemory.Mapped> mapped = peerMemory().giveUp();
        endTransfers(Cause.PEER_GONE, "peer %s: %s".formatted(peerName(), why));
        mapped.forEach(PeerMemory.Mapped::close);
    }

    private void closeChannel() {
        Closing.quietly(channel);
        readable.wakeup();
        writable.wakeup();
    }

    @Override
    public String toString() {
        return peerName() + (peerMemory().isEmpty() ? " over TCP" : " by shared memory");
    }
}
