package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The threads that LibTorch computes with, for loops of ours between its operators. They are OpenMP's, which look out for work for
 * a while after each operator, so they begin within a microsecond: a thread that sleeps takes a hundred to wake, and then has to share a
 * processor with them. Used by the one thread that calls LibTorch, whose team they are.
 *
 * @see <a href="https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html">what a compiler makes of
 *     {@code #pragma omp parallel}</a>
 */
final class Team implements ParallelFor {
    private static final Logger LOG = LoggerFactory.getLogger(Team.class);

    private static final Linker LINKER = Linker.nativeLinker();
    private static final FunctionDescriptor MEMBER = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);

    private final int size;
    private final Optional<MethodHandle> parallel;
    private final MemorySegment member;
    private volatile Loop loop = new Loop(0, 1, (_, _, _) -> {});

    /**
     * @param size how many threads, the calling one among them: as many as LibTorch has, which has been loaded
     * @param arena shared; when it is closed, the team is of no use any more
     */
    Team(int size, Arena arena) {
        this.parallel = size == 1 ? Optional.empty() : find();
        this.size = parallel.isPresent() ? size : 1;
        try {
            Runnable take = () -> loop.take();
            MethodHandle run = MethodHandles.publicLookup()
                    .findVirtual(Runnable.class, "run", MethodType.methodType(void.class))
                    .bindTo(take);
            member = LINKER.upcallStub(MethodHandles.dropArguments(run, 0, MemorySegment.class), MEMBER, arena);
        } catch (ReflectiveOperationException e) {
            throw new LinkageError("a method that every Runnable has", e);
        }
    }

    private static Optional<MethodHandle> find() {
        try {
            return Optional.of(LINKER.downcallHandle(
                    SymbolLookup.libraryLookup("libgomp.so.1", Arena.global()).findOrThrow("GOMP_parallel"),
                    FunctionDescriptor.ofVoid(
                            ValueLayout.ADDRESS, ValueLayout.ADDRESS, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT)));
        } catch (IllegalArgumentException | NoSuchElementException e) {
            LOG.info("Norms, rotations and copies of the KV cache are done by one thread: {}", e.getMessage());
            return Optional.empty();
        }
    }

    @Override
    public int size() {
        return size;
    }

    @Override
    public void share(int count, int piece, Work work) {
        Loop shared = new Loop(count, piece, work);
        if (size == 1 || count <= piece) {
            shared.take();
        } else {
            loop = shared;
            try {
                parallel.orElseThrow().invokeExact(member, MemorySegment.NULL, size, 0);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new AssertionError("C throws nothing", e);
            }
        }
        shared.complain();
    }

    private static final class Loop {
        private final int count;
        private final int piece;
        private final Work work;
        private final AtomicInteger members = new AtomicInteger();
        private final AtomicInteger taken = new AtomicInteger();
        private final AtomicReference<@Nullable Throwable> failure = new AtomicReference<>();

        Loop(int count, int piece, Work work) {
            this.count = count;
            this.piece = piece;
            this.work = work;
        }

        /** By each thread of the team. Nothing may be thrown into C. */
        void take() {
            try {
                int member = members.getAndIncrement();
                for (int first = taken.getAndAdd(piece); first < count; first = taken.getAndAdd(piece)) {
                    work.accept(member, first, Math.min(count, first + piece));
                }
            } catch (Throwable e) {
                // Nothing is allocated here: memory may be what there is none of.
                failure.compareAndSet(null, e);
            }
        }

        void complain() {
            Throwable cause = failure.get();
            if (cause != null) {
                throw new IllegalStateException("a piece was not computed: " + cause, cause);
            }
        }
    }
}
