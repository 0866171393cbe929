package baton.connectors.onesided;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/** Tasks in the background that read or change blocks of the pool, and are over together. One thread's. */
public final class TaskGroup {
    private final Background background;
    private final List<CompletableFuture<Boolean>> tasks = new ArrayList<>();

    public TaskGroup(Background background) {
        this.background = background;
    }

    public void run(Runnable task) {
        tasks.add(background.run(() -> {
            task.run();
            return true;
        }));
    }

    /** True if none is running. */
    public boolean isOver() {
        return tasks.stream().allMatch(CompletableFuture::isDone);
    }

    /** Why the first of those that have failed has failed. */
    public Optional<String> failure() {
        return tasks.stream()
                .filter(CompletableFuture::isCompletedExceptionally)
                .map(each -> String.valueOf(each.exceptionNow().getMessage()))
                .findFirst();
    }

    /** Returns when none is running. */
    public void await() {
        tasks.forEach(each -> each.handle((_, _) -> true).join());
    }
}
