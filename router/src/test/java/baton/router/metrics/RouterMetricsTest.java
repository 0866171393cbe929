package baton.router.metrics;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.concurrent.atomic.LongAdder;
import org.junit.jupiter.api.Test;

/** The text of {@code GET /metrics} before the first request, byte for byte: names, labels, HELP and TYPE lines, buckets. */
class RouterMetricsTest {
    @Test
    void metricsTextIsUnchanged() throws Exception {
        try (RouterMetrics metrics = new RouterMetrics();
                InputStream expected =
                        Objects.requireNonNull(RouterMetricsTest.class.getResourceAsStream("metrics.txt"))) {
            metrics.watch(RouterMetric.REQUESTS_RUNNING, () -> 3);
            metrics.watch(RouterMetric.INSTANCES_UP, () -> 1, "prefill");
            metrics.watch(RouterMetric.INSTANCES, () -> 2, "prefill");
            metrics.watch(RouterMetric.INSTANCES_UP, () -> 4, "decode");
            metrics.watch(RouterMetric.INSTANCES, () -> 5, "decode");
            metrics.watch(RouterMetric.INSTANCES_BY_STATE, () -> 4, "decode", "up");
            metrics.show(RouterMetric.RETRIES, "prefill");
            metrics.count(RouterMetric.RETRIES, "decode");
            assertThat(metrics.scrape()).isEqualTo(new String(expected.readAllBytes(), StandardCharsets.UTF_8));
        }
    }

    @Test
    void watchedCountersAreReadAfterACollectionOfGarbage() {
        LongAdder batches = new LongAdder();
        try (RouterMetrics metrics = new RouterMetrics()) {
            metrics.watch(RouterMetric.KV_EVENT_BATCHES, batches::sum);
            System.gc();
            batches.add(7);
            assertThat(metrics.scrape()).contains("baton:router_kv_event_batches_total 7.0\n");
        }
    }
}
