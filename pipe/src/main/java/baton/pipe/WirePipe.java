package baton.pipe;

import baton.kv.Deadline;
import baton.kv.GeneratedBuilder;
import baton.kv.KvDigest;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/*
 * Threads. Each end has two: one sends frames, the other receives them. A tensor's bytes are sent by the sending end's thread and
 * received by the thread that calls receive(), straight into its memory; meanwhile the receiving thread waits and does not use the
 * wire.
 *
 * Back-pressure. The sending end counts the bytes of tensors until the receiving end acknowledges them, whether they are
 * queued or on the wire. The receiving end buffers nothing: tensors that are not received yet stay on the wire, and in the
 * sending end.
 *
 * End. Each side sends a frame at least four times within `silence`. If it receives none for that long, if the wire fails or if a
 * frame is invalid, it ends the pipe: it closes the wire, and waiting and later callers fail with the reason. A slow receiver
 * still sends frames, so the sending end waits for it as long as its callers do.
 */

/** A pipe over any wire, which it closes. */
public final class WirePipe implements Pipe {
    private final Wire wire;
    private final Settings settings;
    private final Ticker ticker;
    private final boolean sends;

    /** Held during send and receive. */
    private final ReentrantLock turn = new ReentrantLock(true);

    // The monitor guards the fields below.

    @GuardedBy("this")
    private @Nullable String ended;

    /** The sending end's tensors that are not yet on the wire. */
    @GuardedBy("this")
    private final Deque<Item> queue = new ArrayDeque<>();

    /** The sending end's bytes of each tensor that is not acknowledged. */
    @GuardedBy("this")
    private final Deque<Long> untaken = new ArrayDeque<>();

    private long untakenBytes;

    /** The frame that the receiving end's receive() waits for. */
    private PipeFrame.@Nullable Announced next;

    /** Whether the receiving end owes an acknowledgement. */
    @GuardedBy("this")
    private boolean acknowledge;

    /** Tensors sent so far, or received. */
    private long count;

    /**
     * Bounds.
     *
     * @param bufferBytes that a sending end buffers at most, {@code kv_buffer_size}
     * @param tensorBytes that a tensor may have at most; neither end allocates more for one
     * @param silence time without a frame after which the peer counts as dead
     */
    @GeneratedBuilder
    public record Settings(long bufferBytes, long tensorBytes, Duration silence)
            implements WirePipeSettingsBuilder.With {
        public static final Settings DEFAULT = new Settings(1_000_000_000, 4L << 30, Duration.ofSeconds(60));

        /** @throws IllegalArgumentException if one is not positive */
        public Settings {
            if (bufferBytes <= 0 || tensorBytes <= 0 || !silence.isPositive()) {
                throw new IllegalArgumentException(
                        "bufferBytes=%d tensorBytes=%d silence=%s".formatted(bufferBytes, tensorBytes, silence));
            }
        }
    }

    /** A frame to be sent, with the tensor that it announces. */
    private record Item(PipeFrame frame, Optional<Tensor> tensor) {}

    private WirePipe(Wire wire, Settings settings, Ticker ticker, boolean sends) {
        this.wire = wire;
        this.settings = settings;
        this.ticker = ticker;
        this.sends = sends;
    }

    /** The end that sends. */
    public static Pipe sender(Wire wire, Settings settings, Ticker ticker) {
        return new WirePipe(wire, settings, ticker, true).started();
    }

    /** The end that receives. */
    public static Pipe receiver(Wire wire, Settings settings, Ticker ticker) {
        return new WirePipe(wire, settings, ticker, false).started();
    }

    private WirePipe started() {
        // Platform threads, because a wire may wait in native code.
        Thread.ofPlatform().daemon().name("pipe-out").start(() -> run(sends ? this::sendAll : this::acknowledgeAll));
        Thread.ofPlatform()
                .daemon()
                .name("pipe-in")
                .start(() -> run(sends ? this::receiveAcknowledgements : this::receiveAll));
        return this;
    }

    private interface Loop {
        void run(Arena arena) throws PipeException, InterruptedException;
    }

    private void run(Loop loop) {
        try (Arena arena = Arena.ofConfined()) {
            loop.run(arena);
        } catch (PipeException e) {
            end(String.valueOf(e.getMessage()));
        } catch (InterruptedException | RuntimeException | Error e) {
            end(e.toString());
        }
    }

    @Override
    public void send(Tensor tensor, Duration timeout) throws PipeException {
        try {
            queue(tensor, timeout);
        } catch (PipeException | RuntimeException | Error e) {
            tensor.close();
            throw e;
        }
    }

    private void queue(Tensor tensor, Duration timeout) throws PipeException {
        must(sends, "receives");
        long bytes = tensor.data().byteSize();
        if (bytes > settings.tensorBytes()) {
            throw new IllegalArgumentException(
                    "a tensor of %d bytes, at most %d go through the pipe".formatted(bytes, settings.tensorBytes()));
        }
        long cost = bytes + PipeFrame.BYTES;
        Deadline deadline = Deadline.after(ticker, timeout);
        takeTurn(deadline, "others are sending");
        try {
            synchronized (this) {
                awaitOrEnd(
                        () -> untakenBytes == 0 || untakenBytes + cost <= settings.bufferBytes(),
                        deadline,
                        () -> "the receiver has not taken %d bytes: no room for %d within the %d of the buffer"
                                .formatted(untakenBytes, cost, settings.bufferBytes()));
                failIfEnded();
            }
            // The room stays: only the thread that holds the turn fills the buffer.
            Item item = new Item(announce(tensor), Optional.of(tensor));
            synchronized (this) {
                failIfEnded();
                count++;
                queue.add(item);
                untaken.add(cost);
                untakenBytes += cost;
                notifyAll();
            }
        } finally {
            turn.unlock();
        }
    }

    private PipeFrame announce(Tensor tensor) {
        TensorBytes data = tensor.data();
        KvDigest digest = TensorDigest.kind(data);
        return new PipeFrame.Announced(
                count, tensor.type(), tensor.shape(), data.byteSize(), digest, TensorDigest.of(digest, data));
    }

    /** Sends have no deadlines: if the receiver stops, the thread that receives acknowledgements closes the wire. */
    private void sendAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        while (true) {
            Item item = nextToSend();
            try {
                item.frame().write(header);
                wire.send(header, Deadline.LONGEST);
                if (item.tensor().isPresent()) {
                    for (TensorBytes piece : item.tensor().get().data().pieces(PipeFrame.PIECE)) {
                        wire.send(piece, Deadline.LONGEST);
                    }
                }
            } finally {
                free(item);
            }
        }
    }

    private synchronized Item nextToSend() throws PipeException, InterruptedException {
        Deadline alive = Deadline.after(ticker, settings.silence().dividedBy(4));
        while (ended == null && queue.isEmpty() && !alive.isOver()) {
            boolean _ = alive.awaitNotify(this);
        }
        failIfEnded();
        return queue.isEmpty() ? new Item(new PipeFrame.Alive(), Optional.empty()) : queue.remove();
    }

    private void receiveAcknowledgements(Arena arena) throws PipeException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        long taken = 0;
        while (true) {
            wire.receive(header, settings.silence());
            switch (PipeFrame.read(header, 0)) {
                case PipeFrame.Alive() -> {}
                case PipeFrame.Taken(long now) -> {
                    synchronized (this) {
                        if (now < taken || now > count) {
                            throw new PipeException("the receiver says that it took %d after %d, of %d that were sent"
                                    .formatted(now, taken, count));
                        }
                        for (; taken < now; taken++) {
                            untakenBytes -= untaken.remove();
                        }
                        notifyAll();
                    }
                }
                case PipeFrame.Announced _ -> throw new PipeException("the receiver sends tensors");
            }
        }
    }

    private static void free(Item item) {
        item.tensor().ifPresent(Tensor::close);
    }

    @Override
    public Tensor receive(TensorMemory memory, Duration timeout) throws PipeException {
        must(!sends, "sends");
        Deadline deadline = Deadline.after(ticker, timeout);
        takeTurn(deadline, "others are receiving");
        try {
            PipeFrame.Announced announced;
            synchronized (this) {
                awaitOrEnd(() -> next != null, deadline, () -> "nothing came");
                failIfEnded();
                announced = Objects.requireNonNull(next, "neither ended nor anything here");
            }
            Tensor tensor = receive(announced, memory);
            synchronized (this) {
                next = null;
                count++;
                acknowledge = true;
                notifyAll();
            }
            check(announced, tensor);
            return tensor;
        } finally {
            turn.unlock();
        }
    }

    /** Closes a tensor with another checksum. */
    private static void check(PipeFrame.Announced announced, Tensor tensor) throws PipeException {
        try {
            int checksum = TensorDigest.of(announced.digest(), tensor.data());
            if (announced.checksum() != checksum) {
                throw new DamagedTensorException(
                        "%s%s was damaged on its way: its checksum is %08x, that of its bytes %08x"
                                .formatted(
                                        announced.type().torchName(),
                                        announced.shape(),
                                        announced.checksum(),
                                        checksum));
            }
        } catch (PipeException | RuntimeException | Error e) {
            tensor.close();
            throw e;
        }
    }

    /** Receives the bytes of a tensor, each piece within {@code silence}. */
    private Tensor receive(PipeFrame.Announced announced, TensorMemory memory) throws PipeException {
        Tensor tensor = memory.allocate(announced.type(), announced.shape());
        try {
            for (TensorBytes piece : tensor.data().pieces(PipeFrame.PIECE)) {
                wire.receive(piece, settings.silence());
            }
            return tensor;
        } catch (PipeException e) {
            end(String.valueOf(e.getMessage()));
            tensor.close();
            throw new PipeException(
                    "in the middle of %s%s: %s"
                            .formatted(announced.type().torchName(), announced.shape(), e.getMessage()),
                    e);
        } catch (RuntimeException | Error e) {
            // The position of the wire within the tensor is unknown.
            end(e.toString());
            tensor.close();
            throw e;
        }
    }

    private void receiveAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        long expected = 0;
        while (true) {
            wire.receive(header, settings.silence());
            PipeFrame.Announced frame;
            switch (PipeFrame.read(header, settings.tensorBytes())) {
                case PipeFrame.Alive() -> {
                    continue;
                }
                case PipeFrame.Announced announced -> frame = announced;
                case PipeFrame.Taken _ ->
                    throw new PipeException("the sender sent an acknowledgement, which only the receiver sends");
            }
            if (frame.number() != expected) {
                throw new PipeException("tensor %d came where %d was due".formatted(frame.number(), expected));
            }
            expected++;
            synchronized (this) {
                next = frame;
                notifyAll();
                while (next != null && ended == null) {
                    // Without a timeout: until receive() is called and done. If the peer dies the acknowledging thread
                    // ends the pipe.
                    wait();
                }
                failIfEnded();
            }
        }
    }

    private void acknowledgeAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        while (true) {
            Deadline alive = Deadline.after(ticker, settings.silence().dividedBy(4));
            PipeFrame frame;
            synchronized (this) {
                while (ended == null && !acknowledge && !alive.isOver()) {
                    boolean _ = alive.awaitNotify(this);
                }
                failIfEnded();
                frame = acknowledge ? new PipeFrame.Taken(count) : new PipeFrame.Alive();
                acknowledge = false;
            }
            frame.write(header);
            wire.send(header, settings.silence());
        }
    }

    private static void must(boolean may, String does) {
        if (!may) {
            throw new UnsupportedOperationException("this end of the pipe only " + does);
        }
    }

    private void takeTurn(Deadline deadline, String others) throws PipeException {
        try {
            if (!deadline.tryLock(turn)) {
                throw new PipeException("%s, not done within %s".formatted(others, deadline));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted while " + others, e);
        }
    }

    /** Waits for a condition or the pipe's end. */
    @GuardedBy("this")
    private void awaitOrEnd(BooleanSupplier condition, Deadline deadline, Supplier<String> why) throws PipeException {
        try {
            while (ended == null && !condition.getAsBoolean()) {
                if (deadline.isOver()) {
                    throw new PipeException("%s, within %s".formatted(why.get(), deadline));
                }
                boolean _ = deadline.awaitNotify(this);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted: " + why.get(), e);
        }
    }

    @GuardedBy("this")
    private void failIfEnded() throws PipeException {
        if (ended != null) {
            throw new PipeException("the pipe has ended: " + ended);
        }
    }

    private void end(String reason) {
        synchronized (this) {
            if (ended == null) {
                ended = reason;
            }
            queue.forEach(WirePipe::free);
            queue.clear();
            notifyAll();
        }
        wire.close();
    }

    @Override
    public void close() {
        end("it was closed on this side");
    }

    @Override
    public String toString() {
        return (sends ? "pipe to " : "pipe from ") + wire;
    }
}
