package baton.server;

import static baton.server.EngineMetric.Kind.COUNTER;
import static baton.server.EngineMetric.Kind.GAUGE;
import static baton.server.EngineMetric.Kind.HISTOGRAM;

import java.util.stream.IntStream;

/** The metrics of an engine, under vLLM's names (vllm/v1/metrics/loggers.py): kind, name, help, buckets, and labels of their own. */
enum EngineMetric {
    RUNNING(GAUGE, "vllm:num_requests_running", "Requests that are being computed"),
    WAITING(GAUGE, "vllm:num_requests_waiting", "Requests that are not"),
    WAITING_BY_REASON(
            GAUGE,
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason: capacity, or (deferred) KV from elsewhere",
            "reason"),
    CACHE_USAGE(GAUGE, "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1"),
    BLOCKS_USED(GAUGE, "baton:kv_blocks_used", "KV blocks held by requests"),
    BLOCKS_TOTAL(GAUGE, "baton:kv_blocks_total", "KV blocks of the cache"),
    CONNECTOR_BLOCKING(
            GAUGE,
            "baton:kv_connector_blocking_seconds",
            "For how long the engine has waited for a call of its connector, if that is too long; else 0"),
    PREFIX_QUERIES(COUNTER, "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache"),
    PREFIX_HITS(COUNTER, "vllm:prefix_cache_hits", "Tokens found in the prefix cache"),
    EXTERNAL_QUERIES(COUNTER, "vllm:external_prefix_cache_queries", "Tokens asked of the KV connector"),
    EXTERNAL_HITS(COUNTER, "vllm:external_prefix_cache_hits", "Tokens that the KV connector had"),
    PROMPT_TOKENS(COUNTER, "vllm:prompt_tokens", "Prompt tokens read"),
    PROMPT_TOKENS_BY_SOURCE(
            COUNTER, "vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from", "source"),
    PROMPT_TOKENS_CACHED(COUNTER, "vllm:prompt_tokens_cached", "Prompt tokens that were not computed here"),
    PROMPT_TOKENS_CACHED_BY_SOURCE(
            COUNTER,
            "vllm:prompt_tokens_cached_by_source",
            "Prompt tokens that were not computed here, by where their KV was",
            "source"),
    GENERATION_TOKENS(COUNTER, "vllm:generation_tokens", "Tokens generated"),
    PREEMPTIONS(COUNTER, "vllm:num_preemptions", "Times that a request lost its blocks to others"),
    /** Instances have no adapters; schedulers of fleets read the labels. */
    LORA_REQUESTS(
            GAUGE,
            "vllm:lora_requests_info",
            "LoRA adapters of requests, which this server does not have; always 1",
            "max_lora",
            "running_lora_adapters",
            "waiting_lora_adapters"),
    SUCCESS(COUNTER, "vllm:request_success", "Requests that ended, by finish reason", "finished_reason"),
    TIME_TO_FIRST_TOKEN(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token",
            Buckets.FIRST_TOKEN_SECONDS),
    INTER_TOKEN("vllm:inter_token_latency_seconds", "From one token to the next", Buckets.TOKEN_SECONDS),
    END_TO_END("vllm:e2e_request_latency_seconds", "From a request's arrival to its end", Buckets.REQUEST_SECONDS),
    QUEUE("vllm:request_queue_time_seconds", "Waiting to be scheduled", Buckets.REQUEST_SECONDS),
    PREFILL("vllm:request_prefill_time_seconds", "From scheduling to the first token", Buckets.REQUEST_SECONDS),
    DECODE("vllm:request_decode_time_seconds", "From the first token to the last", Buckets.REQUEST_SECONDS),
    INFERENCE("vllm:request_inference_time_seconds", "From scheduling to the last token", Buckets.REQUEST_SECONDS),
    PER_OUTPUT_TOKEN(
            "vllm:request_time_per_output_token_seconds",
            "Mean time from one token to the next of a request",
            Buckets.TOKEN_SECONDS),
    STEP_TOKENS("vllm:iteration_tokens_total", "Tokens computed in a step", Buckets.STEP_TOKENS),
    SEQUENCES("vllm:request_params_n", "The parameter n of requests", Buckets.SEQUENCES),
    PREEMPTIONS_OF_REQUESTS(
            "vllm:request_num_preemptions", "Times that requests lost their blocks to others", Buckets.PREEMPTIONS),
    /** The metrics of an engine that loads KV from elsewhere. */
    FETCHES(
            GAUGE,
            "vllm:num_requests_kv_fetch_by_stage",
            "Waiting requests that load their KV from elsewhere, by how far that is",
            "stage"),
    CACHE_CONFIG(
            GAUGE,
            "vllm:cache_config_info",
            "How the KV cache is set up; always 1",
            "block_size",
            "cache_dtype",
            "enable_prefix_caching",
            "num_gpu_blocks",
            "num_gpu_blocks_override",
            "kv_cache_memory_bytes"),
    REQUEST_PROMPT_TOKENS("vllm:request_prompt_tokens", "Prompt tokens of requests", Buckets.TO_MODEL_LENGTH),
    REQUEST_COMPUTED_TOKENS(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens of requests that were computed here, not cached",
            Buckets.TO_MODEL_LENGTH),
    REQUEST_OUTPUT_TOKENS("vllm:request_generation_tokens", "Tokens generated for requests", Buckets.TO_MODEL_LENGTH),
    REQUEST_LONGEST_OUTPUT(
            "vllm:request_max_num_generation_tokens",
            "Tokens of the longest sequence of requests",
            Buckets.TO_MODEL_LENGTH),
    REQUEST_MAX_TOKENS("vllm:request_params_max_tokens", "Tokens that requests may generate", Buckets.TO_MODEL_LENGTH);

    enum Kind {
        /** {@code _total} is added to the name. */
        COUNTER,
        GAUGE,
        HISTOGRAM
    }

    final Kind kind;
    final String title;
    final String help;

    @SuppressWarnings("ImmutableEnumChecker") // the Prometheus client takes arrays, of which it makes copies
    final double[] buckets;

    @SuppressWarnings("ImmutableEnumChecker")
    final String[] labels;

    EngineMetric(Kind kind, String title, String help, String... labels) {
        this.kind = kind;
        this.title = title;
        this.help = help;
        this.buckets = Buckets.NONE;
        this.labels = labels;
    }

    EngineMetric(String title, String help, double[] buckets) {
        this.kind = HISTOGRAM;
        this.title = title;
        this.help = help;
        this.buckets = buckets;
        this.labels = new String[0];
    }

    /** Upper bounds of buckets. */
    static final class Buckets {
        static final double[] NONE = {};
        static final double[] FIRST_TOKEN_SECONDS = {
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
            2560
        };
        static final double[] TOKEN_SECONDS = {
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
        };
        static final double[] REQUEST_SECONDS = {
            0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680
        };
        static final double[] STEP_TOKENS = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
        static final double[] PREEMPTIONS = {1, 2, 3, 4, 5, 10, 20};
        static final double[] SEQUENCES = {1, 2, 5, 10, 20};
        /** 1, 2, 5, 10, 20, 50, ... up to the model's length, which is known when the engine starts. */
        static final double[] TO_MODEL_LENGTH = {};

        /** For connectors' bytes; vLLM's buckets. */
        static final double[] TRANSFER_BYTES = IntStream.rangeClosed(0, 11)
                .mapToDouble(i -> Math.pow(2, 11 + 2 * i))
                .toArray();

        static final double[] TRANSFER_ITEMS = {
            10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 50_000
        };

        private Buckets() {}

        /** For connectors' durations: vLLM's buckets, or finer ones, which begin below 5 ms. */
        static double[] ofSeconds(String name) {
            return switch (name) {
                case "vllm:mooncake_xfer_time" ->
                    new double[] {0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5};
                case "vllm:kv_offload_tiering_promotion_latency_seconds" ->
                    new double[] {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
                default ->
                    new double[] {0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
                    };
            };
        }
    }
}
