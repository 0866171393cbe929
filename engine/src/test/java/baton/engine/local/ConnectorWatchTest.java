package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.ConnectorCall;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;

class ConnectorWatchTest {
    @Test
    void aCallThatLastsTooLongIsBlockingUntilItReturns() {
        AtomicReference<Optional<ConnectorCall>> open = new AtomicReference<>(Optional.empty());
        try (ConnectorWatch watch = new ConnectorWatch("Mine", open::get, Duration.ofSeconds(10))) {
            watch.look();
            assertThat(watch.blocking()).isEmpty();
            open.set(Optional.of(new ConnectorCall("report", Thread.currentThread(), 9.5)));
            watch.look();
            assertThat(watch.blocking()).isEmpty();
            for (double seconds : new double[] {10, 11, 25}) {
                open.set(Optional.of(new ConnectorCall("report", Thread.currentThread(), seconds)));
                watch.look();
                assertThat(watch.blocking()).isEqualTo(open.get());
            }
            open.set(Optional.empty());
            watch.look();
            assertThat(watch.blocking()).isEmpty();
        }
    }
}
