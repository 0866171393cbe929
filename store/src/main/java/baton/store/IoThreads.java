package baton.store;

/** Where work that may hang runs, such as that on files, and how another thread waits for it. A simulation puts both under its own clock. */
public interface IoThreads {
    /** Runs a task on another thread. It may take arbitrarily long; few run at once. */
    void start(Runnable task);

    /**
     * Waits until the monitor is notified or a short time has passed. Called with the monitor held, in a loop that checks the awaited
     * condition and its deadline.
     */
    void awaitChange(Object monitor) throws InterruptedException;
}
