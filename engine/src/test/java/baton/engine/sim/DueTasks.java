package baton.engine.sim;

import baton.testkit.VirtualTicker;
import java.util.ArrayList;
import java.util.List;

/** Work that takes some simulated time: it runs when it is due. */
final class DueTasks {
    private final VirtualTicker ticker;
    private final List<Task> tasks = new ArrayList<>();

    private record Task(long due, Runnable action) {}

    DueTasks(VirtualTicker ticker) {
        this.ticker = ticker;
    }

    void after(long nanos, Runnable action) {
        tasks.add(new Task(ticker.nanos() + nanos, action));
    }

    void runDue() {
        List<Task> due =
                tasks.stream().filter(task -> task.due - ticker.nanos() <= 0).toList();
        tasks.removeAll(due);
        due.forEach(task -> task.action.run());
    }

    void runAll() {
        List<Task> open = List.copyOf(tasks);
        tasks.clear();
        open.forEach(task -> task.action.run());
    }

    /** Nanoseconds until the next is due; very many if there is none. */
    long untilNext() {
        return tasks.stream().mapToLong(task -> task.due - ticker.nanos()).min().orElse(Long.MAX_VALUE);
    }
}
