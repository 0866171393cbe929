package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineListener.PromptTokens;
import baton.engine.EngineListener.RequestStats;
import baton.engine.EngineListener.StepStats;
import baton.engine.EngineStatus;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.kv.DType;
import baton.kv.connector.Measurement;
import baton.kv.connector.Measurement.Kind;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** The text of {@code GET /metrics}, byte for byte: names, labels, HELP and TYPE lines, buckets, numbers and their order. */
class PrometheusTextTest {
    private static final EngineStatus STATUS =
            new EngineStatus(3, 5, 0, 2, 0, 0, 200, 50, false, Optional.empty(), Optional.empty());

    @Test
    void metricsTextIsUnchanged() throws Exception {
        PrometheusMetrics metrics = new PrometheusMetrics("qu\"oted\\model");
        metrics.onStep(new StepStats(40, 3, 1, 100, 64, 36, 32, 0.01, STATUS));
        metrics.onStart(
                EngineConfig.of(Path.of("m")).blockSize(32).numBlocks(200).build(), 64, DType.BF16, 200);
        metrics.onFirstToken(0.004, new PromptTokens(4, 64, 32));
        metrics.onNextToken(0.03);
        metrics.onFinished(new RequestStats(
                "cmpl-1",
                FinishReason.STOP,
                100,
                3,
                0,
                16,
                new PromptTokens(4, 64, 32),
                0.1,
                0.2,
                0.6,
                0.9,
                RequestTimes.NONE));
        metrics.onAllFinished(2, 7);
        metrics.onMeasurements(List.of(
                Measurement.count("baton:kv_load_bytes", 1e10, "connector", "ExampleConnector"),
                Measurement.gauge("baton:kv_peer_memory_mapped_bytes", 4096, "rank", "0.0"),
                Measurement.seconds("baton:kv_load", 0.002),
                new Measurement("vllm:nixl_bytes_transferred", Kind.BYTES, 1 << 20, Map.of()),
                new Measurement("vllm:nixl_num_descriptors", Kind.ITEMS, 12, Map.of("a", "x\ny"))));
        assertThat(new String(metrics.scrape(STATUS), StandardCharsets.UTF_8)).isEqualTo(expected());
    }

    private static String expected() throws Exception {
        try (InputStream in = Objects.requireNonNull(PrometheusTextTest.class.getResourceAsStream("metrics.txt"))) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        }
    }
}
