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
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.Measurement;
import baton.kv.connector.Measurement.Kind;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class PrometheusMetricsTest {
    private static final EngineStatus STATUS =
            new EngineStatus(3, 5, 0, 2, 0, 0, 200, 50, false, Optional.empty(), Optional.empty());
    private static final String LABELS = "engine=\"0\",model_name=\"m\"";

    private static final EngineConfig CONFIG =
            EngineConfig.of(Path.of("m")).blockSize(32).numBlocks(200).build();

    private final PrometheusMetrics metrics = new PrometheusMetrics("m");

    @Test
    void metricsHaveVllmsNames() {
        metrics.onStep(new StepStats(40, 3, 1, 100, 64, 36, 32, 0.01, STATUS));
        metrics.onStart(CONFIG, 64, DType.BF16, 200);
        metrics.onFirstToken(0.004, new PromptTokens(4, 64, 32));
        metrics.onNextToken(0.03);
        metrics.onFinished(new RequestStats(
                "r",
                FinishReason.STOP,
                100,
                5,
                2,
                16,
                new PromptTokens(4, 64, 32),
                0.1,
                0.2,
                0.6,
                0.9,
                RequestTimes.NONE));
        metrics.onAllFinished(2, 7);
        assertThat(lines())
                .contains(
                        "# TYPE vllm:num_requests_running gauge",
                        "vllm:num_requests_running{" + LABELS + "} 3.0",
                        "vllm:num_requests_waiting{" + LABELS + "} 5.0",
                        "vllm:num_requests_waiting_by_reason{" + LABELS + ",reason=\"capacity\"} 3.0",
                        "vllm:num_requests_waiting_by_reason{" + LABELS + ",reason=\"deferred\"} 2.0",
                        "vllm:kv_cache_usage_perc{" + LABELS + "} 0.25",
                        "baton:kv_blocks_used{" + LABELS + "} 50.0",
                        "baton:kv_blocks_total{" + LABELS + "} 200.0",
                        "# TYPE vllm:prefix_cache_queries_total counter",
                        "vllm:prefix_cache_queries_total{" + LABELS + "} 100.0",
                        "vllm:prefix_cache_hits_total{" + LABELS + "} 64.0",
                        "vllm:external_prefix_cache_queries_total{" + LABELS + "} 36.0",
                        "vllm:external_prefix_cache_hits_total{" + LABELS + "} 32.0",
                        "vllm:prompt_tokens_total{" + LABELS + "} 100.0",
                        "vllm:generation_tokens_total{" + LABELS + "} 3.0",
                        "vllm:prompt_tokens_by_source_total{" + LABELS + ",source=\"local_compute\"} 4.0",
                        "vllm:prompt_tokens_by_source_total{" + LABELS + ",source=\"local_cache_hit\"} 64.0",
                        "vllm:prompt_tokens_by_source_total{" + LABELS + ",source=\"external_kv_transfer\"} 32.0",
                        "vllm:prompt_tokens_cached_total{" + LABELS + "} 96.0",
                        "vllm:num_preemptions_total{" + LABELS + "} 1.0",
                        "vllm:request_success_total{"
                                + LABELS.replace("engine=\"0\"", "engine=\"0\",finished_reason=\"stop\"") + "} 1.0",
                        "vllm:request_success_total{"
                                + LABELS.replace("engine=\"0\"", "engine=\"0\",finished_reason=\"error\"") + "} 0.0",
                        "# TYPE vllm:time_to_first_token_seconds histogram",
                        "vllm:time_to_first_token_seconds_bucket{" + LABELS + ",le=\"0.001\"} 0",
                        "vllm:time_to_first_token_seconds_bucket{" + LABELS + ",le=\"0.005\"} 1",
                        "vllm:time_to_first_token_seconds_bucket{" + LABELS + ",le=\"+Inf\"} 1",
                        "vllm:time_to_first_token_seconds_sum{" + LABELS + "} 0.004",
                        "vllm:time_to_first_token_seconds_count{" + LABELS + "} 1",
                        "vllm:inter_token_latency_seconds_bucket{" + LABELS + ",le=\"0.025\"} 0",
                        "vllm:inter_token_latency_seconds_bucket{" + LABELS + ",le=\"0.05\"} 1",
                        "vllm:e2e_request_latency_seconds_bucket{" + LABELS + ",le=\"0.8\"} 0",
                        "vllm:e2e_request_latency_seconds_bucket{" + LABELS + ",le=\"1.0\"} 1",
                        "vllm:request_queue_time_seconds_sum{" + LABELS + "} 0.1",
                        "vllm:request_prefill_time_seconds_sum{" + LABELS + "} 0.2",
                        "vllm:request_decode_time_seconds_sum{" + LABELS + "} 0.6",
                        "vllm:request_inference_time_seconds_sum{" + LABELS + "} 0.8",
                        "vllm:request_time_per_output_token_seconds_sum{" + LABELS + "} 0.3",
                        "vllm:request_time_per_output_token_seconds_bucket{" + LABELS + ",le=\"0.2\"} 0",
                        "vllm:iteration_tokens_total_bucket{" + LABELS + ",le=\"32.0\"} 0",
                        "vllm:iteration_tokens_total_bucket{" + LABELS + ",le=\"64.0\"} 1",
                        "vllm:request_params_n_bucket{" + LABELS + ",le=\"1.0\"} 0",
                        "vllm:request_params_n_bucket{" + LABELS + ",le=\"2.0\"} 1",
                        "vllm:request_params_max_tokens_sum{" + LABELS + "} 16.0",
                        "vllm:request_prompt_tokens_bucket{" + LABELS + ",le=\"50.0\"} 0",
                        "vllm:request_prompt_tokens_bucket{" + LABELS + ",le=\"+Inf\"} 1",
                        "vllm:request_prefill_kv_computed_tokens_sum{" + LABELS + "} 4.0",
                        "vllm:request_generation_tokens_sum{" + LABELS + "} 5.0",
                        "vllm:request_max_num_generation_tokens_sum{" + LABELS + "} 7.0",
                        "vllm:cache_config_info{block_size=\"32\",cache_dtype=\"bfloat16\","
                                + "enable_prefix_caching=\"True\",engine=\"0\",kv_cache_memory_bytes=\"None\","
                                + "model_name=\"m\",num_gpu_blocks=\"200\",num_gpu_blocks_override=\"200\"} 1.0");
        assertThat(lines()).noneMatch(line -> line.matches(".*_(max|created)[{ ].*"));
    }

    @Test
    void theCachesMetricsHaveTheirOldNamesTooIfThatIsWanted() {
        metrics.addGpuNames();
        metrics.onStep(new StepStats(40, 3, 1, 100, 64, 36, 32, 0.01, STATUS));
        assertThat(lines(metrics, STATUS))
                .contains(
                        "vllm:gpu_cache_usage_perc{" + LABELS + "} 0.25",
                        "vllm:kv_cache_usage_perc{" + LABELS + "} 0.25",
                        "vllm:gpu_prefix_cache_queries_total{" + LABELS + "} 100.0",
                        "vllm:gpu_prefix_cache_hits_total{" + LABELS + "} 64.0",
                        "vllm:prefix_cache_hits_total{" + LABELS + "} 64.0",
                        "vllm:gpu_prefix_cache_hit_rate{" + LABELS + "} 0.64");
    }

    @Test
    void waitingRequestsAreCountedByTheStageOfTheirLoad() {
        EngineStatus status = new EngineStatus(3, 9, 4, 2, 1, 0, 200, 50, false, Optional.empty(), Optional.empty());
        metrics.onStart(CONFIG, 64, DType.BF16, 200);
        assertThat(lines(metrics, status)).noneMatch(line -> line.startsWith("vllm:num_requests_kv_fetch_by_stage"));
        PrometheusMetrics consumer = new PrometheusMetrics("m");
        EngineConfig decode = EngineConfig.of(Path.of("m"))
                .kvTransfer(KvTransferConfig.builder("Consumer", KvRole.CONSUMER)
                        .modulePath("elsewhere")
                        .build())
                .build();
        consumer.onStart(decode, 64, DType.BF16, 200);
        assertThat(lines(consumer, status))
                .contains(
                        "vllm:num_requests_kv_fetch_by_stage{" + LABELS + ",stage=\"waiting_to_start\"} 4.0",
                        "vllm:num_requests_kv_fetch_by_stage{" + LABELS + ",stage=\"in_progress\"} 2.0",
                        "vllm:num_requests_kv_fetch_by_stage{" + LABELS + ",stage=\"completed_waiting\"} 1.0");
    }

    @Test
    void histogramBucketsOfTokensEndAtTheModelsLength() {
        assertThat(PrometheusMetrics.oneTwoFive(100)).containsExactly(1, 2, 5, 10, 20, 50, 100);
        assertThat(PrometheusMetrics.oneTwoFive(99)).containsExactly(1, 2, 5, 10, 20, 50);
        assertThat(PrometheusMetrics.oneTwoFive(131_072)).hasSize(16).endsWith(50_000, 100_000);
    }

    @Test
    void aStepWithoutTokensIsNotCountedInIterationTokens() {
        metrics.onStep(new StepStats(0, 0, 0, 0, 0, 0, 0, 0.01, STATUS));
        assertThat(lines()).contains("vllm:iteration_tokens_total_count{" + LABELS + "} 0");
    }

    @Test
    void connectorMeasurementsAppearWithTheirFirstValue() {
        assertThat(lines()).noneMatch(line -> line.startsWith("baton:kv_load"));
        metrics.onMeasurements(List.of(
                Measurement.count("baton:kv_load_bytes", 1024, "connector", "ExampleConnector"),
                Measurement.seconds("baton:kv_load", 0.002)));
        metrics.onMeasurements(
                List.of(Measurement.count("baton:kv_load_bytes", 1024, "connector", "ExampleConnector")));
        assertThat(lines())
                .contains(
                        "baton:kv_load_bytes_total{connector=\"ExampleConnector\"," + LABELS + "} 2048.0",
                        "baton:kv_load_seconds_bucket{" + LABELS + ",le=\"0.001\"} 0",
                        "baton:kv_load_seconds_bucket{" + LABELS + ",le=\"0.0025\"} 1",
                        "baton:kv_load_seconds_sum{" + LABELS + "} 0.002");
        for (double bytes : new double[] {4096, 1024}) {
            metrics.onMeasurements(
                    List.of(Measurement.gauge("baton:kv_peer_memory_mapped_bytes", bytes, "rank", "0.0")));
        }
        assertThat(lines()).contains("baton:kv_peer_memory_mapped_bytes{" + LABELS + ",rank=\"0.0\"} 1024.0");
    }

    @Test
    void anInvalidConnectorMeasurementIsSkipped() {
        metrics.onMeasurements(List.of(
                new Measurement("", Kind.COUNTER, 1, Map.of()),
                Measurement.count("baton:x", 1),
                Measurement.count("baton:x", 1, "a", "b"),
                Measurement.count("baton:y", -1),
                Measurement.count("baton:z", 3, "a", "quote\"new\nline")));
        assertThat(lines())
                .contains(
                        "baton:x_total{" + LABELS + "} 1.0",
                        "baton:y_total{" + LABELS + "} 0.0",
                        "baton:z_total{a=\"quote\\\"new\\nline\"," + LABELS + "} 3.0");
    }

    private List<String> lines() {
        return lines(metrics, STATUS);
    }

    private static List<String> lines(PrometheusMetrics metrics, EngineStatus status) {
        return new String(metrics.scrape(status), StandardCharsets.UTF_8)
                .lines()
                .toList();
    }
}
