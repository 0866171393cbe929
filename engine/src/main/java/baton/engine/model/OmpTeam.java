package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.ThreadTeam;
import baton.memory.Platform;
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
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The threads that LibTorch computes with, for loops between its operators. They are OpenMP's, which look out for work for a while after
 * each operator, so they begin within a microsecond: a thread that sleeps takes a hundred to wake, and then has to share a processor with
 * them. Used by the thread that calls LibTorch, as GNU OpenMP keeps a team for each calling thread. Where there is no GNU OpenMP they are
 * threads of Java's, which take the pieces of a loop that are left when they arrive.
 *
 * @see <a href="https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html">the code that a compiler makes of
 *     {@code #pragma omp parallel}</a>
 */
final class OmpTeam implements ParallelFor {
    private static final Logger LOG = LoggerFactory.getLogger(OmpTeam.class);

    private static final Linker LINKER = Linker.nativeLinker();
    private static final FunctionDescriptor MEMBER = FunctionDescriptor.ofVoid(ValueLayout.ADDRESS);

    private final int size;
    private final Consumer<Loop> crew;
    private volatile Loop loop = new Loop(0, 1, (_, _, _) -> {});

    /** Looked up when the first team is made, as LibTorch brings it. */
    private static final class OpenMp {
        static final Optional<MethodHandle> PARALLEL = find(Platform.current());
    }

    /**
     * @param size how many threads, the calling one among them: as many as LibTorch has, which has been loaded
     * @param arena shared; when it is closed, the team is of no use any more
     */
    OmpTeam(int size, Arena arena) {
        this(size, arena, size == 1 ? Optional.empty() : OpenMp.PARALLEL);
    }

    /** @param parallel GNU OpenMP's {@code GOMP_parallel}; empty: threads of Java's */
    OmpTeam(int size, Arena arena, Optional<MethodHandle> parallel) {
        this.size = size;
        this.crew = size == 1
                ? Loop::take
                : parallel.map(function -> openMp(function, arena)).orElseGet(() -> threads(arena));
    }

    private Consumer<Loop> openMp(MethodHandle parallel, Arena arena) {
        MemorySegment member;
        try {
            Runnable take = () -> loop.take();
            MethodHandle run = MethodHandles.publicLookup()
                    .findVirtual(Runnable.class, "run", MethodType.methodType(void.class))
                    .bindTo(take);
            member = LINKER.upcallStub(MethodHandles.dropArguments(run, 0, MemorySegment.class), MEMBER, arena);
        } catch (ReflectiveOperationException e) {
            throw new LinkageError("a method that every Runnable has", e);
        }
        return shared -> {
            loop = shared;
            try {
                parallel.invokeExact(member, MemorySegment.NULL, size, 0);
            } catch (RuntimeException | Error e) {
                throw e;
            } catch (Throwable e) {
                throw new AssertionError("C throws nothing", e);
            }
        };
    }

    private Consumer<Loop> threads(Arena arena) {
        ThreadTeam threads = new ThreadTeam(size);
        MemorySegment unusedEnd = MemorySegment.NULL.reinterpret(arena, _ -> threads.close());
        return shared -> threads.parallelFor(size, 1, (_, _, _) -> shared.take());
    }

    private static Optional<MethodHandle> find(Platform platform) {
        String why;
        if (platform.isLinux()) {
            try {
                return Optional.of(LINKER.downcallHandle(
                        SymbolLookup.libraryLookup("libgomp.so.1", Arena.global())
                                .findOrThrow("GOMP_parallel"),
                        FunctionDescriptor.ofVoid(
                                ValueLayout.ADDRESS, ValueLayout.ADDRESS, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT)));
            } catch (IllegalArgumentException | NoSuchElementException e) {
                why = String.valueOf(e.getMessage());
            }
        } else {
            why = "LibTorch for " + platform + " comes without GNU OpenMP";
        }
        LOG.info("Norms, rotations and copies of the KV cache are done by threads beside LibTorch's: {}", why);
        return Optional.empty();
    }

    @Override
    public int size() {
        return size;
    }

    @Override
    public void parallelFor(int count, int piece, Work work) {
        Loop shared = new Loop(count, piece, work);
        if (count <= piece) {
            shared.take();
        } else {
            crew.accept(shared);
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

        /** Runs on each thread of the team. Nothing may be thrown into C. */
        void take() {
            try {
                int member = members.getAndIncrement();
                for (int first = taken.getAndAdd(piece); first < count; first = taken.getAndAdd(piece)) {
                    work.accept(member, first, Math.min(count, first + piece));
                }
            } catch (Throwable e) {
                // Allocation may fail here.
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
