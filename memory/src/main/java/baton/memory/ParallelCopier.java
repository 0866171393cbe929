package baton.memory;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import java.util.zip.CRC32C;

/**
 * Threads that copy memory, piece by piece. A thread is inside the copy's {@link Gate} for a piece, so that a copy can be ended between
 * two pieces.
 */
public final class ParallelCopier implements AutoCloseable {
    private static final long LEAST_PIECE = 128L << 10;
    /** Above 2.5 MiB Java copies past the caches as well, which is faster; much more makes ending slow. */
    private static final long MOST_PIECE = 4L << 20;

    /** Waking a thread takes longer. */
    private static final long MOST_AT_ONCE = 64L << 10;

    /** Bytes that Java copies before it digests them: few enough to be in the cache still, many enough for copying to be as fast. */
    private static final long DIGESTED_AT_ONCE = 128L << 10;

    /** Copies of so many bytes and more go past the caches: smaller ones may be in a cache already, and be read from it afterwards. */
    private static final long PAST_CACHES = 8L << 20;

    /** Enough that threads end at about the same time although the machine does not run them equally. */
    private static final int PIECES_PER_THREAD = 16;

    private final int threads;
    private final Optional<CopyKernel> kernel;
    private final Optional<ExecutorService> executor;

    /**
     * @param name prefix of the threads' names
     * @param threads that copy; with 0 of them, the thread that starts a copy does all of it
     * @param kernel copies the ranges that it takes; the others are copied by Java
     */
    public ParallelCopier(String name, int threads, Optional<CopyKernel> kernel) {
        this.threads = threads;
        this.kernel = kernel;
        this.executor = threads == 0
                ? Optional.empty()
                : Optional.of(Executors.newFixedThreadPool(
                        threads,
                        Thread.ofPlatform().daemon().name(name + "-", 0).factory()));
    }

    /**
     * A range to copy.
     *
     * @param from as many bytes as {@code to}, not overlapping it
     */
    public record Copy(MemorySegment from, MemorySegment to) {
        public Copy {
            if (from.byteSize() != to.byteSize()) {
                throw new IllegalArgumentException(
                        "from has %d bytes, to has %d".formatted(from.byteSize(), to.byteSize()));
            }
        }

        public long bytes() {
            return from.byteSize();
        }
    }

    /** Receives the end of a copy, from a thread that copies or the one that starts the copy. */
    public interface Completion {
        /** The last byte is in place. */
        void copied();

        /** The copy cannot continue: a page was not available, or a listener threw. */
        void failed(Throwable cause);

        /** The copier is closed. */
        void rejected();
    }

    /**
     * Starts to copy, and returns without waiting for it. A small copy is done at once, on the calling thread.
     *
     * @param gate that threads enter to copy a piece; once it has ended nothing more is copied
     * @param completion called while the gate has not ended, once, unless several threads fail at the same time
     */
    public void start(Gate<?> gate, Completion completion, List<Copy> ranges) {
        start(gate, completion, ranges, Optional.empty());
    }

    /** @param digests of whole ranges, which all have {@link RunDigests#bytes} */
    public void start(Gate<?> gate, Completion completion, List<Copy> ranges, Optional<RunDigests> digests) {
        long bytes = ranges.stream().mapToLong(Copy::bytes).sum();
        long most = most(bytes, threads);
        List<List<Copy>> pieces = digests.isPresent() ? wholes(ranges, most) : pieces(ranges, most);
        start(new CopiesJob(gate, completion, bytes, pieces, digests));
    }

    /**
     * Starts to copy ranges, as {@link #start(Gate, Completion, List)} does. Digests of their plans are there when the completion is called.
     *
     * @param sources ranges in one memory each
     * @param bytes of all of them, about
     * @param isDigested whether their plans have digests
     */
    public void startRanges(
            Gate<?> gate, Completion completion, List<? extends CopyRanges> sources, long bytes, boolean isDigested) {
        CopySections sections = new CopySections(sources, bytes, most(bytes, threads));
        start(new SectionsJob(gate, completion, bytes, sections, isDigested));
    }

    private void start(Job job) {
        if (job.bytes <= MOST_AT_ONCE || executor.isEmpty()) {
            job.run();
            return;
        }
        try {
            for (int i = Math.min(threads, job.pieces); i > 0; i--) {
                executor.get().execute(job);
            }
        } catch (RejectedExecutionException _) {
            job.completion.rejected();
        }
    }

    /** Bytes of a piece of so many. */
    static long most(long bytes, int threads) {
        long share = bytes / ((long) Math.max(1, threads) * PIECES_PER_THREAD);
        return Math.clamp(share - share % CopyKernel.SIDE_BY_SIDE, LEAST_PIECE, MOST_PIECE);
    }

    /** The pieces of a copy, taken by each thread one after the other. */
    private abstract class Job implements Runnable {
        private final Gate<?> gate;
        private final Completion completion;
        private final long bytes;
        private final int pieces;
        private final int runs;

        final boolean pastCaches;

        private final AtomicInteger next = new AtomicInteger();
        private final AtomicInteger left;

        /** @param runs digests at a time; 0 for a copy without digests */
        Job(Gate<?> gate, Completion completion, long bytes, int pieces, int runs) {
            this.gate = gate;
            this.completion = completion;
            this.bytes = bytes;
            this.pieces = pieces;
            this.runs = runs;
            pastCaches = bytes >= PAST_CACHES;
            left = new AtomicInteger(pieces);
        }

        /** The state of a thread that copies pieces. */
        abstract Pieces copying(Optional<CopyKernel.Work> work);

        @Override
        public final void run() {
            try (Arena arena = Arena.ofConfined()) {
                Optional<CopyKernel.Work> work = runs > 0 || pastCaches
                        ? kernel.map(_ -> new CopyKernel.Work(arena, Math.max(1, runs)))
                        : Optional.empty();
                Pieces copying = copying(work);
                while (gate.enter()) {
                    try {
                        int piece = next.getAndIncrement();
                        if (piece >= pieces) {
                            return;
                        }
                        copying.copy(piece);
                    } finally {
                        gate.exit();
                    }
                    if (left.decrementAndGet() == 0) {
                        completion.copied();
                    }
                }
            } catch (RuntimeException | Error e) {
                // An InternalError is a page of a mapping that could not be had.
                completion.failed(e);
            }
        }
    }

    private interface Pieces {
        void copy(int piece);
    }

    private final class SectionsJob extends Job {
        private final CopySections sections;

        private SectionsJob(
                Gate<?> gate, Completion completion, long bytes, CopySections sections, boolean isDigested) {
            super(gate, completion, bytes, sections.pieces(), isDigested ? CopyKernel.Work.MOST_ROWS : 0);
            this.sections = sections;
        }

        @Override
        Pieces copying(Optional<CopyKernel.Work> work) {
            return sections.new Copying(new CopyPlan.Copying(kernel, work, pastCaches))::copy;
        }
    }

    private final class CopiesJob extends Job {
        private final List<List<Copy>> pieces;
        private final Optional<RunDigests> digests;
        /** The index of each piece's first range. */
        private final int[] firsts;

        private CopiesJob(
                Gate<?> gate,
                Completion completion,
                long bytes,
                List<List<Copy>> pieces,
                Optional<RunDigests> digests) {
            super(
                    gate,
                    completion,
                    bytes,
                    pieces.size(),
                    digests.map(RunDigests::runs).orElse(0));
            this.pieces = pieces;
            this.digests = digests;
            firsts = new int[pieces.size()];
            for (int i = 1; i < firsts.length; i++) {
                firsts[i] = firsts[i - 1] + pieces.get(i - 1).size();
            }
        }

        @Override
        Pieces copying(Optional<CopyKernel.Work> work) {
            return piece -> copy(pieces.get(piece), firsts[piece], work);
        }

        private void copy(List<Copy> piece, int first, Optional<CopyKernel.Work> work) {
            if (digests.isPresent()) {
                for (int i = 0; i < piece.size(); i += CopyKernelCode.LANES) {
                    List<Copy> sideBySide = piece.subList(i, Math.min(i + CopyKernelCode.LANES, piece.size()));
                    copyAndDigest(sideBySide, first + i, digests.get(), work);
                }
            } else {
                piece.forEach(copy -> copy(copy, work));
            }
        }

        private void copy(Copy copy, Optional<CopyKernel.Work> work) {
            if (work.isPresent() && CopyKernel.takes(copy)) {
                kernel.orElseThrow().copy(copy, work.get());
            } else {
                MemorySegment.copy(copy.from, 0, copy.to, 0, copy.bytes());
            }
        }

        private void copyAndDigest(
                List<Copy> sideBySide, int first, RunDigests digests, Optional<CopyKernel.Work> work) {
            if (work.isPresent() && sideBySide.stream().allMatch(copy -> CopyKernel.takes(copy, digests))) {
                kernel.orElseThrow()
                        .digest(sideBySide.getFirst(), sideBySide.getLast(), digests, pastCaches, work.get());
                if (sideBySide.size() > 1) {
                    digests.listener().digested(first, work.get().crc32c(0));
                }
                digests.listener()
                        .digested(first + sideBySide.size() - 1, work.get().crc32c(1));
            } else {
                for (int i = 0; i < sideBySide.size(); i++) {
                    digests.listener().digested(first + i, digestedByJava(sideBySide.get(i), digests));
                }
            }
        }
    }

    private static int[] digestedByJava(Copy copy, RunDigests digests) {
        CRC32C[] runs = Stream.generate(CRC32C::new).limit(digests.runs()).toArray(CRC32C[]::new);
        long rowBytes = (long) digests.runs() * digests.runBytes();
        long most = Math.max(1, DIGESTED_AT_ONCE / rowBytes) * rowBytes;
        for (long at = 0; at < digests.bytes(); at += most) {
            long bytes = Math.min(most, digests.bytes() - at);
            MemorySegment.copy(copy.from, at, copy.to, at, bytes);
            ByteBuffer copied = copy.to.asSlice(at, bytes).asByteBuffer();
            for (int run = 0; copied.position() < bytes; run = (run + 1) % runs.length) {
                runs[run].update(copied.limit(copied.position() + digests.runBytes()));
            }
        }
        return Arrays.stream(runs).mapToInt(run -> (int) run.getValue()).toArray();
    }

    /** Whole ranges, in twos that go side by side, the short ones gathered up to so many bytes. */
    private static List<List<Copy>> wholes(List<Copy> ranges, long most) {
        List<List<Copy>> pieces = new ArrayList<>();
        long bytes = 0;
        for (Copy range : ranges) {
            if (pieces.isEmpty()
                    || pieces.getLast().size() % CopyKernelCode.LANES == 0 && bytes + range.bytes() > most) {
                pieces.add(new ArrayList<>());
                bytes = 0;
            }
            pieces.getLast().add(range);
            bytes += range.bytes();
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
            long length = range.bytes();
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
        executor.ifPresent(ExecutorService::close);
    }
}
