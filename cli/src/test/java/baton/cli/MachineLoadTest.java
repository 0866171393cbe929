package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.DoubleSupplier;
import org.junit.jupiter.api.Test;

class MachineLoadTest {
    private final BlockingQueue<String> said = new LinkedBlockingQueue<>();
    private final AtomicInteger looks = new AtomicInteger();

    @Test
    void aBusyMachineIsReportedOnceAtTheStart() throws Exception {
        try (MachineLoad load = load(() -> 8.04)) {
            load.start();
            assertThat(said.poll())
                    .startsWith("The load average is 8.0 on 4 processors")
                    .contains("from the 3 threads that compute here", "fewer --threads");
            assertThat(said.poll(50, TimeUnit.MILLISECONDS)).isNull();
            assertThat(looks).hasValueLessThan(3);
        }
    }

    @Test
    void aMachineThatBecomesBusyIsReportedOnce() throws Exception {
        // 4 processors and 3 threads of its own: 11 and above.
        try (MachineLoad load = load(() -> looks.get() < 5 ? 10.9 : 11)) {
            load.start();
            // At the start it has none of its own that run.
            assertThat(said.poll()).contains("10.9");
        }
        looks.set(0);
        try (MachineLoad load = load(() -> looks.get() == 1 ? 7.9 : looks.get() < 5 ? 10.9 : 11)) {
            load.start();
            assertThat(said.poll(120, TimeUnit.SECONDS)).contains("11.0");
            assertThat(looks).hasValueGreaterThanOrEqualTo(5);
        }
    }

    @Test
    void anUnknownLoadIsNotReported() throws Exception {
        try (MachineLoad load = load(() -> -1)) {
            load.start();
            assertThat(said.poll(50, TimeUnit.MILLISECONDS)).isNull();
        }
    }

    private MachineLoad load(DoubleSupplier average) {
        return new MachineLoad(
                () -> {
                    looks.incrementAndGet();
                    return average.getAsDouble();
                },
                4,
                3,
                said::add,
                Duration.ofMillis(1));
    }
}
