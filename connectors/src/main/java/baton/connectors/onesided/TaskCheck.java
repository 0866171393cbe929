package baton.connectors.onesided;

import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;

/** A check by one task in the background, which may also move the blocks to their place. */
public final class TaskCheck implements LoadCheck {
    private final TaskGroup task;
    private final boolean isVerified;
    private final String problem;
    /** Written by the task. */
    private volatile Map<Integer, Rejection> wrong = Map.of();

    /**
     * Begins.
     *
     * @param problem if the task fails
     * @param task finds the blocks without the promised content; empty if no content was promised
     */
    public TaskCheck(
            Background background,
            boolean isVerified,
            String problem,
            Optional<Supplier<Map<Integer, Rejection>>> task) {
        this.task = new TaskGroup(background);
        this.isVerified = isVerified;
        this.problem = problem;
        task.ifPresent(each -> this.task.run(() -> wrong = each.get()));
    }

    @Override
    public boolean advance() {
        return task.isOver();
    }

    @Override
    public Optional<String> failure() {
        return task.failure().map(why -> problem + ": " + why);
    }

    @Override
    public Map<Integer, Rejection> wrong() {
        return wrong;
    }

    @Override
    public boolean isVerified() {
        return isVerified;
    }

    @Override
    public void await() {
        task.await();
    }
}
