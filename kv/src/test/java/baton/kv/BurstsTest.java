package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class BurstsTest {
    private final AtomicLong now = new AtomicLong();
    private final Bursts bursts = new Bursts(2, Duration.ofSeconds(10), now::get);
    private final List<String> lines = new ArrayList<>();

    private void events(int count) {
        for (int i = 0; i < count; i++) {
            bursts.event(more -> lines.add("refused" + more));
        }
    }

    @Test
    void someEventsAreLoggedAndTheRestIsCountedInOneLine() {
        events(400);
        assertThat(lines).containsExactly("refused", "refused");
        assertThat(bursts.due()).isZero();
        now.addAndGet(Duration.ofSeconds(10).toNanos());
        events(3);
        assertThat(lines).containsExactly("refused", "refused", "refused (398 more before)", "refused");
        assertThat(bursts.due()).isZero();
        assertThat(bursts.rest()).isEqualTo(1);
        assertThat(bursts.rest()).isZero();
    }

    @Test
    void eventsThatWereNotLoggedAreDueAfterThePeriod() {
        events(5);
        now.addAndGet(Duration.ofSeconds(10).toNanos());
        assertThat(bursts.due()).isEqualTo(3);
        assertThat(bursts.due()).isZero();
        events(1);
        assertThat(lines).endsWith("refused");
    }
}
