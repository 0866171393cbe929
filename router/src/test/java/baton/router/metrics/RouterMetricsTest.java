package baton.router.metrics;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import org.junit.jupiter.api.Test;

/** The text of {@code GET /metrics} before the first request, byte for byte: names, labels, HELP and TYPE lines, buckets. */
class RouterMetricsTest {
    @Test
    void metricsTextIsUnchanged() throws Exception {
        try (RouterMetrics metrics = new RouterMetrics(() -> 3);
                InputStream expected =
                        Objects.requireNonNull(RouterMetricsTest.class.getResourceAsStream("metrics.txt"))) {
            metrics.addRole("prefill", () -> 1, () -> 2);
            metrics.addRole("decode", () -> 4, () -> 5);
            metrics.addState("decode", "up", () -> 4);
            metrics.retried("decode");
            assertThat(metrics.scrape()).isEqualTo(new String(expected.readAllBytes(), StandardCharsets.UTF_8));
        }
    }
}
