package baton.engine.kernel;

import baton.kv.Ticker;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;

/*
 * Why not OpenMP's threads. All of them have to come to the end of each loop, and they spin for milliseconds in between. Where another
 * process computes on the same cores, a loop of microseconds waits for a thread that has no processor, while threads that have one spin.
 *
 * Here each thread has a part of the loop, pieces that follow each other: their common data stays in its caches, and the processor
 * prefetches the next piece's data. Then it does pieces of the other threads' parts. A loop ends when its pieces are done. A worker that
 * comes late finds none left and is not waited for. A thread that waits spins for as long as the next loop usually takes to come, and then
 * leaves the processor: a worker sleeps, the calling thread yields until the last piece that a worker has begun is done. Where processors
 * are too few for all threads, some take no part (TeamSize).
 */

/**
 * Threads for loops of some microseconds. The workers begin with the first loop, and so inherit the processors that its thread is bound
 * to; they are daemons and end with {@link #close}.
 */
public final class ThreadTeam implements ParallelFor, AutoCloseable {
    /** How long a worker spins for the next loop before it sleeps: waking it takes about as long. */
    private static final long SPIN_NANOS = 100_000;

    /** Looks between two looks at the clock. */
    private static final int LOOKS = 64;

    /** Looks at the last pieces before the calling thread lets other threads have its processor. */
    private static final int LAST_LOOKS = 2_000;

    /** Counters of a loop that lie so far apart are on cache lines that processors do not fetch together. */
    private static final int APART = 128 / Integer.BYTES;

    private final int size;
    private final RunDelay runDelay = new RunDelay();
    private final TeamSize members;
    private final Ticker ticker;
    private final List<Worker> workers = new ArrayList<>();
    private volatile @Nullable Loop loop;
    private volatile boolean closed;

    /** @param size threads, the calling one among them */
    public ThreadTeam(int size) {
        this.size = size;
        this.members = new TeamSize(size, runDelay);
        this.ticker = Ticker.system();
    }

    /** @param members how many threads take part in a loop */
    ThreadTeam(int size, TeamSize members, Ticker ticker) {
        this.size = size;
        this.members = members;
        this.ticker = ticker;
    }

    @Override
    public int size() {
        return size;
    }

    @Override
    public int members() {
        return members.last();
    }

    /**
     * The same threads, for loops of which some pieces take much longer than others: waiting for the last ones does not mean that threads have no
     * processor.
     */
    public ParallelFor forUnevenPieces() {
        return new ParallelFor() {
            @Override
            public int size() {
                return size;
            }

            @Override
            public int members() {
                return ThreadTeam.this.members();
            }

            @Override
            public void parallelFor(int count, int piece, Work work) {
                ThreadTeam.this.parallelFor(count, piece, work, false);
            }
        };
    }

    @Override
    public void parallelFor(int count, int piece, Work work) {
        parallelFor(count, piece, work, true);
    }

    private void parallelFor(int count, int piece, Work work, boolean even) {
        int taking = size > 1 && count > piece ? members.at(ticker.nanos()) : 1;
        Loop shared = new Loop(taking, count, piece, work);
        if (taking > 1) {
            if (workers.isEmpty()) {
                start();
            }
            loop = shared;
            for (Worker worker : workers) {
                worker.wake(taking);
            }
            shared.take(0);
            if (!shared.isDone()) {
                long waits = ticker.nanos();
                shared.await();
                if (even) {
                    members.waited(ticker.nanos() - waits);
                }
            }
        } else {
            shared.take(0);
        }
        Throwable failure = shared.failure.get();
        if (failure != null) {
            throw new IllegalStateException("a piece was not computed: " + failure, failure);
        }
    }

    private void start() {
        for (int member = 1; member < size; member++) {
            Worker worker = new Worker(member);
            workers.add(worker);
            worker.thread.start();
        }
    }

    /** Ends the workers; no loop may be under way. */
    @Override
    public void close() {
        closed = true;
        workers.forEach(worker -> LockSupport.unpark(worker.thread));
        runDelay.close();
    }

    private final class Worker {
        private final int member;
        private final Thread thread;
        private volatile boolean sleeping;

        Worker(int member) {
            this.member = member;
            this.thread = Thread.ofPlatform().daemon().name("kernel-" + member).unstarted(this::run);
        }

        /** @param members of the loop that begins */
        void wake(int members) {
            if (sleeping && member < members) {
                LockSupport.unpark(thread);
            }
        }

        private void run() {
            Loop done = null;
            while (!closed) {
                Loop next = loop;
                if (next != null && isFor(next, done)) {
                    next.take(member);
                    done = next;
                } else if (!comes(done)) {
                    sleeping = true;
                    if (!isFor(loop, done) && !closed) {
                        // Without a deadline: the next loop or close() unparks it.
                        LockSupport.park(this);
                    }
                    sleeping = false;
                }
            }
        }

        /** Whether a loop has a part for this worker, and is not the one that it has {@code done}. */
        private boolean isFor(@Nullable Loop next, @Nullable Loop done) {
            return next != null && next != done && member < next.members;
        }

        /** Whether another loop than {@code done} comes soon. */
        private boolean comes(@Nullable Loop done) {
            long start = System.nanoTime();
            do {
                for (int i = 0; i < LOOKS; i++) {
                    if (isFor(loop, done) || closed) {
                        return true;
                    }
                    Thread.onSpinWait();
                }
            } while (System.nanoTime() - start < SPIN_NANOS);
            return false;
        }
    }

    private static final class Loop {
        private final int members;
        private final int count;
        private final int piece;
        private final int pieces;
        private final Work work;
        /** The next piece of each member's part. */
        private final AtomicIntegerArray next;

        private final AtomicInteger left;
        private final AtomicReference<@Nullable Throwable> failure = new AtomicReference<>();

        Loop(int members, int count, int piece, Work work) {
            this.members = members;
            this.count = count;
            this.piece = piece;
            this.pieces = Math.ceilDiv(count, piece);
            this.work = work;
            // Not at the beginning, beside the array's length.
            this.next = new AtomicIntegerArray((members + 1) * APART);
            for (int part = 0; part < members; part++) {
                next.setPlain(place(part), firstOf(part));
            }
            this.left = new AtomicInteger(pieces);
        }

        /** First piece of a member's part. */
        private int firstOf(int member) {
            return (int) ((long) pieces * member / members);
        }

        private static int place(int part) {
            return (part + 1) * APART;
        }

        /** Does the member's part, and then the remaining pieces of the other ones. */
        void take(int member) {
            for (int i = 0; i < members && !isDone(); i++) {
                int part = (member + i) % members;
                int end = firstOf(part + 1);
                for (int taken = take(part, end); taken < end; taken = take(part, end)) {
                    compute(member, taken * piece);
                }
            }
        }

        /** The next piece of a part; its end or more if there is none. */
        private int take(int part, int end) {
            // Threads that find none do not take the cache line from each other.
            return next.get(place(part)) < end ? next.getAndIncrement(place(part)) : end;
        }

        private void compute(int member, int first) {
            try {
                work.accept(member, first, Math.min(count, first + piece));
            } catch (Throwable e) {
                failure.compareAndSet(null, e);
            } finally {
                left.decrementAndGet();
            }
        }

        boolean isDone() {
            return left.get() == 0;
        }

        /** Without a deadline: the last pieces are being computed, and write to memory that the caller may free. */
        @SuppressWarnings("ThreadPriorityCheck") // the awaited thread may need this very processor
        void await() {
            for (int looks = 0; left.get() > 0; looks++) {
                if (looks < LAST_LOOKS) {
                    Thread.onSpinWait();
                } else {
                    Thread.yield();
                }
            }
        }
    }
}
