package baton.store.remote;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.StoreTask;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class DeadlineAlarmTest {
    private record Timed(long at, Runnable action) {}

    private final AtomicLong now = new AtomicLong(Long.MAX_VALUE - 50);
    private final Ticker ticker = now::get;
    private final List<Timed> timers = new ArrayList<>();
    private int set;
    private final DeadlineAlarm alarm = new DeadlineAlarm(ticker, (time, action) -> {
        set++;
        timers.add(new Timed(now.get() + time.toNanos(), action));
    });

    private StoreTask task(long nanos) {
        return new StoreTask(1, Deadline.after(ticker, Duration.ofNanos(nanos)));
    }

    /** Lets time pass, and runs the timers that are due. */
    private void pass(long nanos) {
        now.addAndGet(nanos);
        List<Timed> due =
                timers.stream().filter(timer -> timer.at - now.get() <= 0).toList();
        timers.removeAll(due);
        due.forEach(timer -> timer.action.run());
    }

    @Test
    void endsTasksAtTheirDeadlines() {
        List<String> ended = new ArrayList<>();
        StoreTask late = task(200);
        StoreTask soon = task(100);
        late.onDone(() -> ended.add("late"));
        soon.onDone(() -> ended.add("soon"));
        alarm.watch(late);
        alarm.watch(soon);
        pass(99);
        assertThat(ended).isEmpty();
        pass(1);
        assertThat(ended).containsExactly("soon");
        pass(100);
        assertThat(ended).containsExactly("soon", "late");
    }

    @Test
    void oneTimerServesTasksOfTheSameTime() {
        for (int i = 0; i < 1000; i++) {
            StoreTask task = task(100_000);
            alarm.watch(task);
            alarm.forget(task);
            pass(10);
        }
        assertThat(set).isEqualTo(1);
        StoreTask last = task(100_000);
        alarm.watch(last);
        pass(90_000);
        assertThat(last.isDone()).isFalse();
        assertThat(set).isEqualTo(2);
        pass(10_000);
        assertThat(last.isDone()).isTrue();
    }

    @Test
    void keepsNoTaskThatIsForgotten() {
        StoreTask task = task(100);
        alarm.watch(task);
        alarm.forget(task);
        assertThat(alarm.size()).isZero();
        List<String> ended = new ArrayList<>();
        task.onDone(() -> ended.add("ended"));
        pass(1000);
        assertThat(ended).isEmpty();
        assertThat(timers).isEmpty();
    }
}
