package baton.transfer.nixl;

import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The one thread of a {@link NixlAgent} that calls NIXL, the owner of the agent's state. It runs commands in the order of their
 * submission and, between them, rounds of the agent's {@link Work}. Other threads submit commands and may wait for their results.
 */
final class NixlThread {
    private static final Logger LOG = LoggerFactory.getLogger(NixlAgent.class);

    /** The limit of a call that needs no peer. */
    static final Duration LOCAL_CALL = Duration.ofMinutes(5);

    private static final int SPINS = 64;
    private static final long WORKING_NANOS = 20_000;
    private static final long WARM_NANOS = 50_000;
    private static final long COLD_NANOS = 1_000_000;
    private static final long WARM_FOR_NANOS = TimeUnit.SECONDS.toNanos(5);

    /** The thread's work besides commands. */
    interface Work {
        /**
         * One round of work, without waiting.
         *
         * @return whether the round made progress
         */
        boolean step();

        /** Whether something is under way, so that rounds follow one another closely. */
        boolean isBusy();

        /** The last thing that the thread does. */
        void end();
    }

    /** A command with a result. */
    interface Task<T> {
        T run() throws TransferException;
    }

    private final String agent;
    private final Ticker ticker;
    private final Work work;
    private final Thread owner;
    private final OwnerThread ownerThread;

    private final Queue<Runnable> commands = new ConcurrentLinkedQueue<>();
    private volatile boolean closing;
    private volatile boolean ended;

    // State of the thread itself.
    private long lastWork;
    private int idleRounds;

    /** @param agent name of the agent */
    NixlThread(String agent, Ticker ticker, Work work) {
        this.agent = agent;
        this.ticker = ticker;
        this.work = work;
        lastWork = ticker.nanos();
        owner = Thread.ofPlatform().daemon().name("nixl-" + agent).unstarted(this::run);
        ownerThread = OwnerThread.of(owner);
    }

    void start() {
        owner.start();
    }

    /** Methods that check, and those that they call, are run by this thread. */
    void check() {
        ownerThread.check();
    }

    /** Has the thread run a command. */
    void submit(Runnable command) {
        commands.add(command);
        wake();
    }

    /** Ends a pause of the thread. */
    void wake() {
        LockSupport.unpark(owner);
    }

    /** Has the thread run a task, and waits for its result. */
    <T> T call(Task<T> task) throws TransferException {
        CompletableFuture<T> result = new CompletableFuture<>();
        submit(() -> {
            try {
                result.complete(task.run());
            } catch (TransferException | RuntimeException e) {
                result.completeExceptionally(e);
            }
        });
        if (ended) {
            throw new TransferException(whyEnded());
        }
        return await(result, LOCAL_CALL, "NIXL did not return within ");
    }

    /** @param otherwise the beginning of the error's message, before the limit, if the limit is over first */
    static <T> T await(CompletableFuture<T> result, Duration limit, String otherwise) throws TransferException {
        try {
            return result.get(limit.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new TransferException(otherwise + limit.toMillis() + " ms", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted", e);
        } catch (ExecutionException e) {
            Throwable cause = Objects.requireNonNullElse(e.getCause(), e);
            if (cause instanceof RuntimeException wrong) {
                throw wrong;
            }
            throw new TransferException(String.valueOf(cause.getMessage()), cause);
        }
    }

    /** The thread does no more rounds; {@link Work#end} has begun. Commands may still be run. */
    boolean hasEnded() {
        return ended;
    }

    /** Why commands fail once the thread {@linkplain #hasEnded() has ended}. */
    String whyEnded() {
        return "agent " + agent + " is closed";
    }

    /** Lets the thread end when it is through with its round. */
    void stop() {
        closing = true;
        wake();
    }

    /** Waits until the stopped thread has ended, unless the caller is that thread. */
    void join() {
        boolean interrupted = false;
        while (owner.isAlive() && !owner.equals(Thread.currentThread())) {
            try {
                owner.join();
            } catch (InterruptedException e) {
                // Memory may only be given back when NIXL is done with it.
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Runs the commands that the thread has not come to. They fail as it has ended, which completes the futures that callers wait for. */
    void runRemaining() {
        check();
        for (Runnable command; (command = commands.poll()) != null; ) {
            command.run();
        }
    }

    private void run() {
        try {
            while (!closing) {
                boolean worked = false;
                List<Runnable> waiting = new ArrayList<>();
                for (Runnable command; (command = commands.poll()) != null; ) {
                    waiting.add(command);
                }
                for (Runnable command : waiting) {
                    command.run();
                    worked = true;
                }
                worked |= work.step();
                idle(worked);
            }
        } catch (RuntimeException | Error e) {
            LOG.error("NIXL agent {} ends", agent, e);
        } finally {
            ended = true;
            work.end();
        }
    }

    private void idle(boolean worked) {
        long now = ticker.nanos();
        if (worked) {
            lastWork = now;
            idleRounds = 0;
            return;
        }
        if (!commands.isEmpty() || closing) {
            return;
        }
        if (work.isBusy()) {
            if (++idleRounds < SPINS) {
                Thread.onSpinWait();
            } else {
                LockSupport.parkNanos(WORKING_NANOS);
            }
        } else {
            LockSupport.parkNanos(now - lastWork < WARM_FOR_NANOS ? WARM_NANOS : COLD_NANOS);
        }
    }
}
