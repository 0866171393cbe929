package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Arrivals;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** Threads that copy memory, piece by piece; between two pieces a copy can be ended. */
final class Copier implements AutoCloseable {
    private static final long LEAST_PIECE = 128L << 10;
    /** Above 2.5 MiB the JVM copies past the caches, which is faster; much more makes ending slow. */
    private static final long MOST_PIECE = 4L << 20;

    /** Waking a thread takes longer. */
    private static final long MOST_AT_ONCE = 64L << 10;

    /** Bytes that are told of at once: few enough to be in the cache still, many enough for copying to be as fast. */
    private static final long TOLD_AT_ONCE = 128L << 10;

    /** So many that threads end at about the same time although the machine does not run them equally. */
    private static final int PIECES_PER_THREAD = 16;

    private final int threads;
    private final ExecutorService executor;

    Copier(String name, int threads) {
        this.threads = threads;
        this.executor = Executors.newFixedThreadPool(
                threads,
                Thread.ofPlatform()
                        .daemon()
                        .name("transfer-copier-" + name + "-", 0)
                        .factory());
    }

    /** A range to copy; both sides have its length. */
    record Copy(MemorySegment from, MemorySegment to) {}

    /** Starts to copy; ends {@code moving} with the last byte. The little is copied at once. */
    void start(Moving moving, List<Copy> ranges) {
        start(moving, ranges, Optional.empty());
    }

    /** @param arrivals told of bytes right after they were copied */
    void start(Moving moving, List<Copy> ranges, Optional<Arrivals> arrivals) {
        long bytes = moving.bytes();
        long most = Math.clamp(bytes / ((long) threads * PIECES_PER_THREAD), LEAST_PIECE, MOST_PIECE);
        List<List<Copy>> pieces = arrivals.isPresent() ? wholes(ranges, most) : pieces(ranges, most);
        int[] firsts = new int[pieces.size()];
        for (int i = 1; i < firsts.length; i++) {
            firsts[i] = firsts[i - 1] + pieces.get(i - 1).size();
        }
        AtomicInteger next = new AtomicInteger();
        AtomicLong left = new AtomicLong(bytes);
        if (bytes <= MOST_AT_ONCE) {
            work(moving, pieces, firsts, next, left, arrivals);
            return;
        }
        try {
            for (int i = Math.min(threads, pieces.size()); i > 0; i--) {
                executor.execute(() -> work(moving, pieces, firsts, next, left, arrivals));
            }
        } catch (RejectedExecutionException _) {
            moving.fail(Cause.CANCELLED, "the agent is closed");
        }
    }

    private static void work(
            Moving moving,
            List<List<Copy>> pieces,
            int[] firsts,
            AtomicInteger next,
            AtomicLong left,
            Optional<Arrivals> arrivals) {
        while (moving.enter()) {
            long copied = 0;
            try {
                int piece = next.getAndIncrement();
                if (piece >= pieces.size()) {
                    return;
                }
                int index = firsts[piece];
                for (Copy copy : pieces.get(piece)) {
                    if (arrivals.isPresent()) {
                        copyAndTell(copy, index++, arrivals.get());
                    } else {
                        MemorySegment.copy(copy.from, 0, copy.to, 0, copy.from.byteSize());
                    }
                    copied += copy.from.byteSize();
                }
            } catch (RuntimeException | InternalError e) {
                // An InternalError is a page of a mapping that could not be had.
                moving.fail(Cause.TRANSPORT, "copying failed: " + e);
            } finally {
                moving.exit();
            }
            if (left.addAndGet(-copied) == 0) {
                moving.succeed();
            }
        }
    }

    private static void copyAndTell(Copy copy, int index, Arrivals arrivals) {
        for (long at = 0; at < copy.from.byteSize(); at += TOLD_AT_ONCE) {
            long bytes = Math.min(TOLD_AT_ONCE, copy.from.byteSize() - at);
            MemorySegment.copy(copy.from, at, copy.to, at, bytes);
            arrivals.arrived(index, at, bytes);
        }
    }

    /** Whole ranges, the short ones gathered up to so many bytes. */
    private static List<List<Copy>> wholes(List<Copy> ranges, long most) {
        List<List<Copy>> pieces = new ArrayList<>();
        long bytes = 0;
        for (Copy range : ranges) {
            if (pieces.isEmpty() || bytes + range.from.byteSize() > most) {
                pieces.add(new ArrayList<>());
                bytes = 0;
            }
            pieces.getLast().add(range);
            bytes += range.from.byteSize();
        }
        return pieces;
    }

    /** Neighbours become one, the long are cut, the short are gathered: pieces of at most so many bytes, to be copied at a time. */
    static List<List<Copy>> pieces(List<Copy> ranges, long most) {
        List<List<Copy>> pieces = new ArrayList<>();
        List<Copy> piece = new ArrayList<>();
        long bytes = 0;
        for (Copy range : ranges) {
            long at = 0;
            long length = range.from.byteSize();
            while (at < length) {
                if (bytes == most) {
                    pieces.add(piece);
                    piece = new ArrayList<>();
                    bytes = 0;
                }
                long take = Math.min(length - at, most - bytes);
                Copy cut = new Copy(range.from.asSlice(at, take), range.to.asSlice(at, take));
                if (piece.isEmpty() || !joins(piece.getLast(), cut)) {
                    piece.add(cut);
                } else {
                    Copy last = piece.removeLast();
                    long joined = last.from.byteSize() + take;
                    piece.add(new Copy(last.from.reinterpret(joined), last.to.reinterpret(joined)));
                }
                bytes += take;
                at += take;
            }
        }
        if (!piece.isEmpty()) {
            pieces.add(piece);
        }
        return pieces;
    }

    private static boolean joins(Copy first, Copy second) {
        return first.from.address() + first.from.byteSize() == second.from.address()
                && first.to.address() + first.to.byteSize() == second.to.address()
                && first.from.scope().equals(second.from.scope())
                && first.to.scope().equals(second.to.scope());
    }

    @Override
    public void close() {
        executor.close();
    }
}
