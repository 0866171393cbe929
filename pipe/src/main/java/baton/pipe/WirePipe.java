package baton.pipe;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/*
 * Threads. Each end has two of its own: one sends frames, the other receives them, in opposite directions. A tensor's bytes are
 * sent by the sending end's thread and received by whoever calls receive(), straight into its arena; meanwhile the receiving
 * thread waits for it and leaves the wire alone.
 *
 * Back-pressure. The sending end counts what it has copied until the other says that it was taken, wherever it is. The receiving
 * end holds nothing: what nobody asks for stays in the wire, and before it.
 *
 * End. Each side says at least four times within `silence` that it is there. Whoever hears nothing for that long, or whose wire
 * fails, or who is told something that cannot be, ends the pipe: it closes the wire, and everybody who waits or comes later is told
 * why. A slow receiver is not silent, so that the sending end waits for it as long as its callers do.
 */

/** A pipe over any wire. The wire belongs to it. */
public final class WirePipe implements Pipe {
    /** Others end such a wait: who hears nothing of the peer, or close. */
    static final Duration LONGEST = Duration.ofDays(36500);

    private final Wire wire;
    private final Settings settings;
    private final boolean sends;

    /** One at a time calls send or receive. */
    private final ReentrantLock turn = new ReentrantLock(true);

    /** Guards what follows. */
    private final ReentrantLock lock = new ReentrantLock();

    private final Condition changed = lock.newCondition();
    private @Nullable String ended;

    // Of the sending end
    private final Deque<Item> queue = new ArrayDeque<>();
    private final Deque<Long> untaken = new ArrayDeque<>();
    private long untakenBytes;

    // Of the receiving end
    private @Nullable PipeFrame next;
    private boolean acknowledge;

    // Of both: how many were sent, or taken
    private long count;

    /**
     * What a pipe holds and waits for.
     *
     * @param bufferBytes that a sending end buffers at most, {@code kv_buffer_size}
     * @param tensorBytes that a tensor may have at most; neither end allocates more for one
     * @param silence after which a peer is taken for dead
     */
    public record Settings(long bufferBytes, long tensorBytes, Duration silence) {
        public static final Settings DEFAULT = new Settings(1_000_000_000, 4L << 30, Duration.ofSeconds(60));

        /** @throws IllegalArgumentException if one is not positive */
        public Settings {
            if (bufferBytes <= 0 || tensorBytes <= 0 || !silence.isPositive()) {
                throw new IllegalArgumentException(
                        "bufferBytes=%d tensorBytes=%d silence=%s".formatted(bufferBytes, tensorBytes, silence));
            }
        }

        public Settings withBufferBytes(long bytes) {
            return new Settings(bytes, tensorBytes, silence);
        }

        public Settings withTensorBytes(long bytes) {
            return new Settings(bufferBytes, bytes, silence);
        }

        public Settings withSilence(Duration other) {
            return new Settings(bufferBytes, tensorBytes, other);
        }
    }

    /** A copy on its way, with its memory; nothing is sent as a frame alone. */
    private record Item(PipeFrame frame, @Nullable Arena arena, MemorySegment data) {}

    private WirePipe(Wire wire, Settings settings, boolean sends) {
        this.wire = wire;
        this.settings = settings;
        this.sends = sends;
    }

    /** The end that sends. */
    public static Pipe sender(Wire wire, Settings settings) {
        return new WirePipe(wire, settings, true).started();
    }

    /** The end that receives. */
    public static Pipe receiver(Wire wire, Settings settings) {
        return new WirePipe(wire, settings, false).started();
    }

    private WirePipe started() {
        // Platform threads, because a wire may wait in native code.
        Thread.ofPlatform().daemon().name("pipe-out").start(() -> run(sends ? this::sendAll : this::acknowledgeAll));
        Thread.ofPlatform().daemon().name("pipe-in").start(() -> run(sends ? this::hearAll : this::receiveAll));
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

    // The sending end

    @Override
    public void send(Optional<Tensor> tensor, Duration timeout) throws PipeException {
        must(sends, "receives");
        long bytes = tensor.map(each -> each.data().byteSize()).orElse(0L);
        if (bytes > settings.tensorBytes()) {
            throw new IllegalArgumentException(
                    "a tensor of %d bytes, at most %d go through the pipe".formatted(bytes, settings.tensorBytes()));
        }
        long cost = bytes + PipeFrame.BYTES;
        long deadline = deadline(timeout);
        takeTurn(deadline, timeout, "others are sending");
        try {
            lock.lock();
            try {
                awaitOrEnd(
                        () -> untakenBytes == 0 || untakenBytes + cost <= settings.bufferBytes(),
                        deadline,
                        timeout,
                        () -> "the receiver has not taken %d bytes: no room for %d within the %d of the buffer"
                                .formatted(untakenBytes, cost, settings.bufferBytes()));
                failIfEnded();
            } finally {
                lock.unlock();
            }
            // Only who has the turn makes the buffer fuller.
            Item item = tensor.map(this::copy)
                    .orElseGet(() -> new Item(new PipeFrame.Nothing(count), null, MemorySegment.NULL));
            lock.lock();
            try {
                if (ended != null) {
                    free(item);
                }
                failIfEnded();
                count++;
                queue.add(item);
                untaken.add(cost);
                untakenBytes += cost;
                changed.signalAll();
            } finally {
                lock.unlock();
            }
        } finally {
            turn.unlock();
        }
    }

    private Item copy(Tensor tensor) {
        Arena arena = Arena.ofShared();
        try {
            MemorySegment data = arena.allocate(Math.max(1, tensor.data().byteSize()), 64)
                    .asSlice(0, tensor.data().byteSize());
            data.copyFrom(tensor.data());
            return new Item(
                    new PipeFrame.Announced(count, tensor.type(), tensor.shape(), data.byteSize()), arena, data);
        } catch (RuntimeException | Error e) {
            arena.close();
            throw e;
        }
    }

    private void sendAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        while (true) {
            Item item = nextToSend();
            try {
                item.frame().write(header);
                wire.send(header, LONGEST);
                for (MemorySegment piece : PipeFrame.pieces(item.data())) {
                    wire.send(piece, LONGEST);
                }
            } finally {
                free(item);
            }
        }
    }

    private Item nextToSend() throws PipeException, InterruptedException {
        long left = settings.silence().toNanos() / 4;
        lock.lock();
        try {
            while (ended == null && queue.isEmpty() && left > 0) {
                left = changed.awaitNanos(left);
            }
            failIfEnded();
            return queue.isEmpty() ? new Item(new PipeFrame.Alive(), null, MemorySegment.NULL) : queue.remove();
        } finally {
            lock.unlock();
        }
    }

    /** Hears what was taken. */
    private void hearAll(Arena arena) throws PipeException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        long taken = 0;
        while (true) {
            wire.receive(header, settings.silence());
            switch (PipeFrame.read(header, 0)) {
                case PipeFrame.Alive() -> {}
                case PipeFrame.Taken(long now) -> {
                    lock.lock();
                    try {
                        if (now < taken || now > count) {
                            throw new PipeException("the receiver says that it took %d after %d, of %d that were sent"
                                    .formatted(now, taken, count));
                        }
                        for (; taken < now; taken++) {
                            untakenBytes -= untaken.remove();
                        }
                        changed.signalAll();
                    } finally {
                        lock.unlock();
                    }
                }
                case PipeFrame.Announced _, PipeFrame.Nothing _ ->
                    throw new PipeException("the receiver sends tensors");
            }
        }
    }

    private static void free(Item item) {
        if (item.arena() != null) {
            item.arena().close();
        }
    }

    // The receiving end

    @Override
    public Optional<Tensor> receive(Arena arena, Duration timeout) throws PipeException {
        must(!sends, "sends");
        long deadline = deadline(timeout);
        takeTurn(deadline, timeout, "others are receiving");
        try {
            PipeFrame came;
            lock.lock();
            try {
                awaitOrEnd(() -> next != null, deadline, timeout, () -> "nothing came");
                failIfEnded();
                came = next;
            } finally {
                lock.unlock();
            }
            Optional<Tensor> tensor = switch (came) {
                case PipeFrame.Announced announced -> Optional.of(receive(announced, arena));
                case PipeFrame.Nothing _, PipeFrame.Alive _, PipeFrame.Taken _ -> Optional.empty();
                case null -> throw new IllegalStateException("neither ended nor anything here");
            };
            lock.lock();
            try {
                next = null;
                count++;
                acknowledge = true;
                changed.signalAll();
            } finally {
                lock.unlock();
            }
            return tensor;
        } finally {
            turn.unlock();
        }
    }

    /** The rest of the wire, a piece within {@code silence} each. */
    private Tensor receive(PipeFrame.Announced announced, Arena arena) throws PipeException {
        MemorySegment data = arena.allocate(Math.max(1, announced.bytes()), 64).asSlice(0, announced.bytes());
        try {
            for (MemorySegment piece : PipeFrame.pieces(data)) {
                wire.receive(piece, settings.silence());
            }
        } catch (PipeException e) {
            end(String.valueOf(e.getMessage()));
            throw new PipeException(
                    "in the middle of %s%s: %s"
                            .formatted(announced.type().torchName(), announced.shape(), e.getMessage()),
                    e);
        } catch (RuntimeException | Error e) {
            // Nobody knows where in the tensor the wire is.
            end(e.toString());
            throw e;
        }
        return new Tensor(announced.type(), announced.shape(), data);
    }

    private void receiveAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        long expected = 0;
        while (true) {
            wire.receive(header, settings.silence());
            PipeFrame frame = PipeFrame.read(header, settings.tensorBytes());
            switch (frame) {
                case PipeFrame.Alive() -> {
                    continue;
                }
                case PipeFrame.Announced(long number, Tensor.Type _, var _, long _) -> expect(number, expected);
                case PipeFrame.Nothing(long number) -> expect(number, expected);
                case PipeFrame.Taken _ -> throw new PipeException("the sender says what it took");
            }
            expected++;
            lock.lock();
            try {
                next = frame;
                changed.signalAll();
                while (next != null && ended == null) {
                    changed.await();
                }
                failIfEnded();
            } finally {
                lock.unlock();
            }
        }
    }

    private static void expect(long number, long expected) throws PipeException {
        if (number != expected) {
            throw new PipeException("tensor %d came where %d was due".formatted(number, expected));
        }
    }

    private void acknowledgeAll(Arena arena) throws PipeException, InterruptedException {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        while (true) {
            long left = settings.silence().toNanos() / 4;
            PipeFrame frame;
            lock.lock();
            try {
                while (ended == null && !acknowledge && left > 0) {
                    left = changed.awaitNanos(left);
                }
                failIfEnded();
                frame = acknowledge ? new PipeFrame.Taken(count) : new PipeFrame.Alive();
                acknowledge = false;
            } finally {
                lock.unlock();
            }
            frame.write(header);
            wire.send(header, settings.silence());
        }
    }

    // Both ends

    private static void must(boolean may, String does) {
        if (!may) {
            throw new UnsupportedOperationException("this end of the pipe only " + does);
        }
    }

    private static long deadline(Duration timeout) {
        return System.nanoTime() + (timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout).toNanos();
    }

    private void takeTurn(long deadline, Duration timeout, String others) throws PipeException {
        try {
            if (!turn.tryLock(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS)) {
                throw new PipeException("%s, not done within %d ms".formatted(others, timeout.toMillis()));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted while " + others, e);
        }
    }

    /** Waits for something, or the end; the lock is held. */
    private void awaitOrEnd(BooleanSupplier something, long deadline, Duration timeout, Supplier<String> why)
            throws PipeException {
        try {
            while (ended == null && !something.getAsBoolean()) {
                if (changed.awaitNanos(deadline - System.nanoTime()) <= 0
                        && !something.getAsBoolean()
                        && ended == null) {
                    throw new PipeException("%s, within %d ms".formatted(why.get(), timeout.toMillis()));
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("interrupted: " + why.get(), e);
        }
    }

    private void failIfEnded() throws PipeException {
        if (ended != null) {
            throw new PipeException("the pipe has ended: " + ended);
        }
    }

    private void end(String reason) {
        lock.lock();
        try {
            if (ended == null) {
                ended = reason;
            }
            queue.forEach(WirePipe::free);
            queue.clear();
            changed.signalAll();
        } finally {
            lock.unlock();
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
