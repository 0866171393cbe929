package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.function.IntFunction;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/*
 * The exchange between the ranks of a model, each on a thread of its own, in a forward pass.
 *
 * Memory. Whatever one rank reads of another lies in memory of this class, never in a tensor of a forward pass, so a rank that
 * fails frees nothing that another rank still reads. Each rank has two buffers for its products and takes them in turn: a rank that
 * writes the first again has waited for all other ranks at the second, so they have read the first. Between two forward passes no rank is in
 * either, which the caller sees to; so each pass begins with the first buffer.
 *
 * Sums. Every rank adds up all ranks' products in fp32 and in the order of the ranks. So the results do not depend on which rank comes
 * first, and the ranks of a stage have the same hidden states, bit for bit.
 *
 * Failures. A rank that fails, or waits beyond the deadline, makes all other ranks fail in this pass; the next is a new one.
 */
final class Collective implements AutoCloseable {
    /** The longest that one rank waits for another, a connector's waits in a layer included. */
    static final Duration TIMEOUT = Duration.ofMinutes(5);

    /** Rows that are summed together. */
    private static final int ROWS = 512;

    /** A few microseconds, about as long as it takes to wake a thread. */
    private static final int SPINS = 2_000;

    private final int tensorSize;
    private final int pipelineSize;
    private final int hiddenSize;
    private final Duration timeout;
    private final Ticker ticker;
    private final boolean spins;
    private final Arena arena = Arena.ofShared();
    private final List<MemorySegment> products = new ArrayList<>();
    private final List<Handed> handed = new ArrayList<>();
    private MemorySegment offered = MemorySegment.NULL;

    @GuardedBy("this")
    private Pass pass = new Pass(0);

    Collective(int tensorSize, int pipelineSize, int hiddenSize, Duration timeout, Ticker ticker) {
        this.tensorSize = tensorSize;
        this.pipelineSize = pipelineSize;
        this.hiddenSize = hiddenSize;
        this.timeout = timeout;
        this.ticker = ticker;
        this.spins = tensorSize * pipelineSize <= Runtime.getRuntime().availableProcessors();
        for (int i = 0; tensorSize > 1 && i < 2 * tensorSize * pipelineSize; i++) {
            products.add(HugePages.allocate(arena, (long) ROWS * hiddenSize * Float.BYTES, "sums of ranks"));
        }
        for (int i = 1; i < pipelineSize; i++) {
            handed.add(new Handed());
        }
    }

    /** The part of one rank. */
    Member member(Shard shard) {
        return new Member(shard.rank().pipeline(), shard.rank().tensor());
    }

    /** Frees the memory, once. No rank may be in a forward pass. */
    @Override
    public void close() {
        if (arena.scope().isAlive()) {
            handed.forEach(each -> each.arena.close());
            arena.close();
        }
    }

    /** The hidden states that one stage hands to the next. */
    private static final class Handed {
        private Arena arena = Arena.ofShared();
        private MemorySegment memory = MemorySegment.NULL;

        private MemorySegment ofBytes(long bytes) {
            if (memory.byteSize() < bytes) {
                arena.close();
                arena = Arena.ofShared();
                memory = HugePages.allocate(arena, bytes, "hidden states between stages");
            }
            return memory.asSlice(0, bytes);
        }
    }

    /** One forward pass of all ranks. */
    private final class Pass {
        private final long number;
        /** For each stage, how often ranks have come to a barrier; then, for each stage, 1 when its hidden states are handed on. */
        private final AtomicIntegerArray events = new AtomicIntegerArray(2 * pipelineSize);

        private volatile Optional<Throwable> failure = Optional.empty();

        private Pass(long number) {
            this.number = number;
        }

        private void count(int event, int step) {
            if (events.incrementAndGet(event) % step == 0) {
                synchronized (this) {
                    notifyAll();
                }
            }
        }

        private synchronized void fail(Throwable cause) {
            if (failure.isEmpty()) {
                failure = Optional.of(cause);
                notifyAll();
            }
        }

        private void await(int event, int target) {
            for (int i = 0; spins && i < SPINS && events.get(event) < target; i++) {
                Thread.onSpinWait();
            }
            Deadline deadline = Deadline.after(ticker, timeout);
            synchronized (this) {
                while (events.get(event) < target && failure.isEmpty()) {
                    if (deadline.isOver()) {
                        fail(new IllegalStateException("another rank has not come within " + timeout));
                        break;
                    }
                    try {
                        boolean _ = deadline.awaitNotify(this);
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                        fail(e);
                    }
                }
            }
            failure.ifPresent(cause -> {
                throw new IllegalStateException("another rank has failed: " + cause.getMessage(), cause);
            });
        }
    }

    private synchronized Pass pass(long number) {
        if (pass.number < number) {
            pass = new Pass(number);
        }
        return pass;
    }

    /** Some rows of a rank's results. */
    @FunctionalInterface
    private interface Piece {
        Matrix of(long first, long count);
    }

    /** Used by the rank's thread alone; the first rank's closes the whole. All members go through the same calls in every forward pass. */
    final class Member implements AutoCloseable {
        private final int stage;
        private final int tensor;
        private long number;
        private Pass current = pass(0);
        private int barriers;
        private int turn;

        private Member(int stage, int tensor) {
            this.stage = stage;
            this.tensor = tensor;
        }

        @Override
        public void close() {
            if (stage == 0 && tensor == 0) {
                Collective.this.close();
            }
        }

        /** Ranks of the stage. */
        int tensorSize() {
            return tensorSize;
        }

        /** Begins a forward pass. */
        void enter() {
            current = pass(++number);
            barriers = 0;
            turn = 0;
        }

        /** This rank leaves the forward pass early; the other ranks will too. */
        void fail(Throwable cause) {
            current.fail(cause);
        }

        /** Returns when all ranks of the stage are here. */
        void await() {
            if (tensorSize > 1) {
                current.count(stage, tensorSize);
                current.await(stage, ++barriers * tensorSize);
            }
        }

        /**
         * Adds each rank's {@code rows} times the transposed part of a matrix that it has to {@code x}, [rows, hidden].
         *
         * @param kernels of this rank
         */
        void addTo(Matrix x, Linear part, Matrix rows, ModelKernels kernels) {
            if (tensorSize == 1) {
                part.addTo(x, rows);
            } else {
                addTo(x, (first, count) -> part.apply(rows.part(first, count)), kernels);
            }
        }

        /** Adds each rank's {@code own} to {@code x}, both [rows, hidden]. */
        void addTo(Matrix x, Matrix own, ModelKernels kernels) {
            if (tensorSize == 1) {
                own.addTo(x, 1, kernels.threads());
            } else {
                addTo(x, own::part, kernels);
            }
        }

        private void addTo(Matrix x, Piece own, ModelKernels kernels) {
            for (long first = 0; first < x.rows(); first += ROWS) {
                long count = Math.min(ROWS, x.rows() - first);
                try (RowMemory.Scope _ = kernels.scope()) {
                    own.of(first, count).convert(product(tensor, count), kernels.threads());
                    await();
                    addProducts(x.part(first, count), kernels.threads());
                }
                turn = 1 - turn;
            }
        }

        private void addProducts(Matrix x, ParallelFor threads) {
            List<Matrix> products = IntStream.range(0, tensorSize)
                    .mapToObj(each -> product(each, x.rows()))
                    .toList();
            threads.parallelFor(x.rows(), Matrix.PIECE, (_, first, end) -> {
                RowBuffer sum = new RowBuffer(hiddenSize);
                RowBuffer addend = new RowBuffer(hiddenSize);
                for (int row = first; row < end; row++) {
                    sum.load(products.getFirst(), row, 0, hiddenSize);
                    for (Matrix product : products.subList(1, tensorSize)) {
                        addend.load(product, row, 0, hiddenSize);
                        sum.add(addend, hiddenSize);
                    }
                    addend.load(x, row, 0, hiddenSize);
                    sum.add(addend, hiddenSize);
                    sum.store(x, row, 0, hiddenSize);
                }
            });
        }

        /**
         * The columns of all ranks beside each other; {@code own} if there is one rank. A column that several ranks have is the last one's.
         *
         * @param own of this rank
         * @param columnsOf the columns that a rank has, as many as this one
         * @param columns of all ranks
         */
        Matrix gathered(Matrix own, IntFunction<Shard.Range> columnsOf, int columns, ModelKernels kernels) {
            if (tensorSize == 1) {
                return own;
            }
            Matrix all = kernels.rows(own.rows(), columns);
            long atOnce = Math.clamp((long) ROWS * hiddenSize / own.columns(), 1, ROWS);
            for (long first = 0; first < own.rows(); first += atOnce) {
                Matrix piece = all.part(first, Math.min(atOnce, own.rows() - first));
                own.part(first, piece.rows()).convert(product(tensor, piece.rows(), own.columns()), kernels.threads());
                await();
                for (int rank = 0; rank < tensorSize; rank++) {
                    Shard.Range range = columnsOf.apply(rank);
                    product(rank, piece.rows(), range.count())
                            .convert(piece.columns(range.first(), range.count()), kernels.threads());
                }
                turn = 1 - turn;
            }
            return all;
        }

        private Matrix product(int ofTensor, long rows) {
            return product(ofTensor, rows, hiddenSize);
        }

        private Matrix product(int ofTensor, long rows, int columns) {
            MemorySegment memory = products.get(2 * (stage * tensorSize + ofTensor) + turn);
            return Matrix.dense(memory, rows, columns, DType.F32);
        }

        /** The memory that the stage's first rank supplies, for all of its ranks. */
        MemorySegment fromFirst(Supplier<MemorySegment> supplier) {
            if (tensor == 0) {
                offered = supplier.get();
            }
            await();
            return offered;
        }

        /** Hands the hidden states, which are equal in all ranks of the stage, to the next one, if there is one. */
        void handOn(Matrix x, ModelKernels kernels) {
            if (tensor == 0 && stage < pipelineSize - 1) {
                MemorySegment memory = handed.get(stage)
                        .ofBytes((long) x.rows() * hiddenSize * x.type().bytes());
                x.convert(Matrix.dense(memory, x.rows(), hiddenSize, x.type()), kernels.threads());
                current.count(pipelineSize + stage, 1);
            }
        }

        /** The hidden states of the stage before, [rows, hidden]. */
        Matrix handedOn(long rows, ModelKernels kernels) {
            current.await(pipelineSize + stage - 1, 1);
            Matrix own = kernels.rows(rows, hiddenSize);
            Matrix.dense(handed.get(stage - 1).memory, rows, hiddenSize, own.type())
                    .convert(own, kernels.threads());
            return own;
        }
    }
}
