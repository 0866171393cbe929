package baton.engine.sim;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadFactory;
import java.util.function.BooleanSupplier;

/**
 * Threads that run only while the world waits for them, one at a time, in the order of their birth: from where one may go on to where it
 * waits again, or ends. So a world with threads is as repeatable as one without.
 */
final class CooperativeThreads implements ThreadFactory {
    private final List<Turn> turns = new ArrayList<>();

    private static final class Turn {
        private final Semaphore go = new Semaphore(0);
        private final Semaphore back = new Semaphore(0);
        private BooleanSupplier ready = () -> true;
        private boolean over;
    }

    private final Map<Thread, Turn> byThread = new ConcurrentHashMap<>();

    @Override
    public Thread newThread(Runnable action) {
        Turn turn = new Turn();
        turns.add(turn);
        return Thread.ofVirtual().unstarted(() -> {
            turn.go.acquireUninterruptibly();
            byThread.put(Thread.currentThread(), turn);
            try {
                action.run();
            } finally {
                byThread.remove(Thread.currentThread());
                turn.over = true;
                turn.back.release();
            }
        });
    }

    /** Waits, on one of the threads, for something that the world does. */
    void await(BooleanSupplier something) {
        Turn turn = Objects.requireNonNull(byThread.get(Thread.currentThread()), "not one of these threads");
        turn.ready = something;
        turn.back.release();
        turn.go.acquireUninterruptibly();
    }

    /** Lets all go on that can. */
    void run() {
        for (Iterator<Turn> each = turns.iterator(); each.hasNext(); ) {
            Turn turn = each.next();
            while (!turn.over && turn.ready.getAsBoolean()) {
                turn.go.release();
                turn.back.acquireUninterruptibly();
            }
            if (turn.over) {
                each.remove();
            }
        }
    }
}
