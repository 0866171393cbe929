package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class DeadlineTest {
    private final AtomicLong clock = new AtomicLong(5);
    private final Ticker ticker = clock::get;

    @Test
    void remainsUntilTheTimeHasPassed() {
        Deadline deadline = Deadline.after(ticker, Duration.ofMillis(3));

        assertThat(deadline.remaining()).isEqualTo(Duration.ofMillis(3));
        assertThat(deadline.isOver()).isFalse();
        clock.addAndGet(2_999_999);
        assertThat(deadline.remainingNanos()).isEqualTo(1);
        assertThat(deadline.isOver()).isFalse();
        clock.addAndGet(1);
        assertThat(deadline.isOver()).isTrue();
        clock.addAndGet(1_000_000);
        assertThat(deadline.remaining()).isZero();
        assertThat(deadline.timeout()).isEqualTo(Duration.ofMillis(3));
        assertThat(deadline).hasToString("3 ms");
    }

    @ParameterizedTest
    @ValueSource(longs = {0, 5, Long.MAX_VALUE - 3, Long.MIN_VALUE, -1})
    void noTimeOverflowsWhereverTheClockBegins(long origin) {
        clock.set(origin);
        Deadline longest = Deadline.after(ticker, Duration.ofSeconds(Long.MAX_VALUE));
        Deadline past = Deadline.after(ticker, Duration.ofSeconds(Long.MIN_VALUE));
        Deadline never = Deadline.never(ticker);

        assertThat(longest.remaining()).isEqualTo(Deadline.LONGEST);
        assertThat(longest.isOver()).isFalse();
        assertThat(past.isOver()).isTrue();
        assertThat(past.timeout()).isZero();
        clock.addAndGet(Duration.ofDays(36_499).toNanos());
        assertThat(never.isOver()).isFalse();
        assertThat(past.remainingNanos()).isZero();
    }

    @Test
    void millisecondsOfASocketAreNeverZero() {
        assertThat(Deadline.after(ticker, Duration.ZERO).remainingMillis()).isEqualTo(1);
        assertThat(Deadline.after(ticker, Duration.ofNanos(1)).remainingMillis())
                .isEqualTo(1);
        assertThat(Deadline.after(ticker, Duration.ofNanos(1_000_001)).remainingMillis())
                .isEqualTo(2);
        assertThat(Deadline.never(ticker).remainingMillis()).isEqualTo(Integer.MAX_VALUE);
    }

    @Test
    void theSoonerOfTwoIsTaken() {
        Deadline deadline = Deadline.after(ticker, Duration.ofSeconds(2));

        assertThat(deadline.atMost(Duration.ofSeconds(3))).isSameAs(deadline);
        assertThat(deadline.atMost(Duration.ofSeconds(1)).timeout()).isEqualTo(Duration.ofSeconds(1));
        assertThat(deadline.remaining(Duration.ofSeconds(3))).isEqualTo(Duration.ofSeconds(2));
        assertThat(deadline.remaining(Duration.ofSeconds(1))).isEqualTo(Duration.ofSeconds(1));
    }

    @Test
    void waitsEndWithTheDeadline() throws Exception {
        ReentrantLock lock = new ReentrantLock();
        Condition condition = lock.newCondition();
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMillis(5));

        assertThat(deadline.tryLock(lock)).isTrue();
        try {
            while (deadline.await(condition)) {
                assertThat(deadline.isOver()).isFalse();
            }
            assertThat(CompletableFuture.supplyAsync(() -> tryLock(deadline, lock))
                            .get())
                    .isFalse();
        } finally {
            lock.unlock();
        }
        Object monitor = new Object();
        synchronized (monitor) {
            assertThat(deadline.awaitNotify(monitor)).isFalse();
        }
        assertThatThrownBy(() -> deadline.get(new CompletableFuture<>())).isInstanceOf(TimeoutException.class);
        assertThat(deadline.get(CompletableFuture.completedFuture(1))).isEqualTo(1);
    }

    private static boolean tryLock(Deadline deadline, ReentrantLock lock) {
        try {
            return deadline.tryLock(lock);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
