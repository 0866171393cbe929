package baton.pipe.c10d;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.pipe.PipeException;
import baton.pipe.WireContract;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Calls of virtual threads: as many at a time as were asked for, and no fewer. */
@Timeout(300)
class GlooNativeCallsTest {
    /** The thread of the call before may not be waiting for another yet. */
    @Test
    void aCallMayFollowAnotherOneAtOnce() throws Exception {
        try (NativeCalls calls = new NativeCalls("test", 1)) {
            FutureTask<Integer> made = virtually(() -> {
                int sum = 0;
                for (int i = 0; i < 20_000; i++) {
                    sum += calls.make(() -> 1, () -> {});
                }
                return sum;
            });
            assertThat(WireContract.result(made)).isEqualTo(20_000);
        }
    }

    @Test
    void moreThanThatAreRefusedUntilOneHasEnded() throws Exception {
        try (NativeCalls calls = new NativeCalls("test", 1)) {
            CountDownLatch inside = new CountDownLatch(1);
            CountDownLatch end = new CountDownLatch(1);
            FutureTask<Boolean> first = virtually(() -> calls.make(
                    () -> {
                        inside.countDown();
                        return waited(end);
                    },
                    () -> {}));
            assertThat(inside.await(30, TimeUnit.SECONDS)).isTrue();
            FutureTask<Boolean> second = virtually(() -> calls.make(() -> true, () -> {}));
            assertThatThrownBy(() -> WireContract.result(second))
                    .isInstanceOf(PipeException.class)
                    .hasMessage("test: 1 calls are under way, no more at a time");
            end.countDown();
            assertThat(WireContract.result(first)).isTrue();
            FutureTask<Boolean> broken = virtually(() -> calls.make(
                    () -> {
                        throw new PipeException("broken");
                    },
                    () -> {}));
            assertThatThrownBy(() -> WireContract.result(broken)).hasMessage("broken");
            FutureTask<Boolean> third = virtually(() -> calls.make(() -> true, () -> {}));
            assertThat(WireContract.result(third)).isTrue();
        }
    }

    private static boolean waited(CountDownLatch latch) throws PipeException {
        try {
            return latch.await(30, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            throw new PipeException("interrupted", e);
        }
    }

    private static <T> FutureTask<T> virtually(Callable<T> work) {
        FutureTask<T> task = new FutureTask<>(work);
        Thread.ofVirtual().start(task);
        return task;
    }
}
