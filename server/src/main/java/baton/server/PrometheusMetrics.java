package baton.server;

import baton.engine.ConnectorCall;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineStatus;
import baton.engine.FinishReason;
import baton.kv.DType;
import baton.kv.connector.CacheSource;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.Measurement;
import io.prometheus.metrics.core.datapoints.CounterDataPoint;
import io.prometheus.metrics.core.datapoints.DistributionDataPoint;
import io.prometheus.metrics.core.datapoints.GaugeDataPoint;
import io.prometheus.metrics.core.metrics.Counter;
import io.prometheus.metrics.core.metrics.CounterWithCallback;
import io.prometheus.metrics.core.metrics.Gauge;
import io.prometheus.metrics.core.metrics.GaugeWithCallback;
import io.prometheus.metrics.core.metrics.Histogram;
import io.prometheus.metrics.expositionformats.PrometheusTextFormatWriter;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An engine's metrics in Prometheus' text format under vLLM's names (vllm/v1/metrics/loggers.py), each series labelled
 * {@code model_name} and {@code engine="0"}. Connectors' measurements appear under their own names from their first value on.
 *
 * <p>Written by the engine's thread, read by any thread.
 */
public final class PrometheusMetrics implements EngineListener {
    static final String CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8";

    private static final Logger LOG = LoggerFactory.getLogger(PrometheusMetrics.class);

    private static final double[] TTFT_SECONDS = {
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
    };
    private static final double[] TOKEN_SECONDS = {
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
    };
    private static final double[] REQUEST_SECONDS = {
        0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680
    };
    /** Tokens in a step. */
    private static final double[] STEP_TOKENS = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

    private static final double[] PREEMPTIONS = {1, 2, 3, 4, 5, 10, 20};

    private static final double[] SEQUENCES = {1, 2, 5, 10, 20};
    /** For connectors' durations; finer than vLLM's buckets, which begin at 5 ms. */
    private static final double[] TRANSFER_SECONDS = {
        0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
    };

    /** For connectors' bytes; vLLM's buckets. */
    private static final double[] TRANSFER_BYTES = IntStream.rangeClosed(11, 33)
            .mapToDouble(exponent -> Math.pow(2, exponent))
            .toArray();

    private static final double[] TRANSFER_ITEMS = {
        10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 50_000
    };

    private static final List<String> LABELS = List.of("model_name", "engine");

    /** First size of a scrape's text, in bytes. */
    private static final int INITIAL_TEXT = 64 << 10;

    /** All series are without exemplars, which would need a tracing library. */
    private final PrometheusRegistry registry = new PrometheusRegistry();

    /** Without {@code _created} samples, which vLLM does not have. */
    private final PrometheusTextFormatWriter writer = PrometheusTextFormatWriter.builder()
            .setIncludeCreatedTimestamps(false)
            .build();

    private final String[] labels;

    private final GaugeDataPoint running;
    private final GaugeDataPoint waiting;
    private final GaugeDataPoint connectorBlocking;
    private final GaugeDataPoint waitingForCapacity;
    private final GaugeDataPoint waitingDeferred;
    private final GaugeDataPoint cacheUsage;
    private final GaugeDataPoint blocksUsed;
    private final GaugeDataPoint blocksTotal;
    private final CounterDataPoint prefixQueries;
    private final CounterDataPoint prefixHits;
    private final CounterDataPoint externalQueries;
    private final CounterDataPoint externalHits;
    private final CounterDataPoint promptTokens;
    private final CounterDataPoint localCompute;
    private final CounterDataPoint localCacheHit;
    private final CounterDataPoint externalKvTransfer;
    private final CounterDataPoint promptTokensCached;
    private final Counter cachedBySource;
    private final CounterDataPoint cachedOnDevice;
    /** Of the connector that the engine has. */
    private volatile CounterDataPoint cachedElsewhere;

    private final CounterDataPoint generationTokens;
    private final CounterDataPoint preemptions;
    private final Counter success;
    private final DistributionDataPoint ttft;
    private final DistributionDataPoint interToken;
    private final DistributionDataPoint endToEnd;
    private final DistributionDataPoint queue;
    private final DistributionDataPoint prefill;
    private final DistributionDataPoint decode;
    private final DistributionDataPoint inference;
    private final DistributionDataPoint perOutputToken;
    private final DistributionDataPoint stepTokens;
    private final DistributionDataPoint sequences;
    private final DistributionDataPoint preemptionsOfRequests;

    /** Present once it is known that the engine loads KV from elsewhere. */
    private volatile Optional<Fetches> fetches = Optional.empty();

    /** Waiting requests by what has become of the load of their KV. */
    private record Fetches(GaugeDataPoint toStart, GaugeDataPoint inProgress, GaugeDataPoint completed) {}

    /** Present once the engine's limits are known. */
    private volatile Optional<Lengths> lengths = Optional.empty();

    /** Histograms whose buckets end at {@code max_model_len}. */
    private record Lengths(
            DistributionDataPoint prompt,
            DistributionDataPoint computed,
            DistributionDataPoint output,
            DistributionDataPoint longestOutput,
            DistributionDataPoint maxTokens) {}

    /** Connectors' metrics by name; for the engine's thread only. Empty: refused, and logged once. */
    private final Map<String, Optional<BiConsumer<List<String>, Measurement>>> measured = new HashMap<>();

    public PrometheusMetrics(String modelName) {
        labels = new String[] {modelName, "0"};
        running = gauge("vllm:num_requests_running", "Requests that are being computed");
        waiting = gauge("vllm:num_requests_waiting", "Requests that are not");
        Gauge byReason = Gauge.builder()
                .name("vllm:num_requests_waiting_by_reason")
                .help("Waiting requests by what they wait for: capacity, or (deferred) KV from elsewhere")
                .labelNames(with("reason"))
                .withoutExemplars()
                .register(registry);
        waitingForCapacity = byReason.labelValues(valuesWith("capacity"));
        waitingDeferred = byReason.labelValues(valuesWith("deferred"));
        cacheUsage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1");
        blocksUsed = gauge("baton:kv_blocks_used", "KV blocks held by requests");
        blocksTotal = gauge("baton:kv_blocks_total", "KV blocks of the cache");
        connectorBlocking = gauge(
                "baton:kv_connector_blocking_seconds",
                "For how long the engine has waited for a call of its connector, if that is too long; else 0");
        prefixQueries = counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache");
        prefixHits = counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache");
        externalQueries = counter("vllm:external_prefix_cache_queries", "Tokens asked of the KV connector");
        externalHits = counter("vllm:external_prefix_cache_hits", "Tokens that the KV connector had");
        promptTokens = counter("vllm:prompt_tokens", "Prompt tokens read");
        Counter bySource = Counter.builder()
                .name("vllm:prompt_tokens_by_source")
                .help("Prompt tokens by where their KV came from")
                .labelNames(with("source"))
                .withoutExemplars()
                .register(registry);
        localCompute = bySource.labelValues(valuesWith("local_compute"));
        localCacheHit = bySource.labelValues(valuesWith("local_cache_hit"));
        externalKvTransfer = bySource.labelValues(valuesWith("external_kv_transfer"));
        promptTokensCached = counter("vllm:prompt_tokens_cached", "Prompt tokens that were not computed here");
        cachedBySource = Counter.builder()
                .name("vllm:prompt_tokens_cached_by_source")
                .help("Prompt tokens that were not computed here, by where their KV was")
                .labelNames(with("source"))
                .withoutExemplars()
                .register(registry);
        cachedOnDevice = cachedBySource.labelValues(valuesWith("device"));
        for (CacheSource source : CacheSource.values()) {
            cachedBySource.initLabelValues(valuesWith(source.label()));
        }
        cachedElsewhere = cachedBySource.labelValues(valuesWith(CacheSource.EXTERNAL_UNSPECIFIED.label()));
        generationTokens = counter("vllm:generation_tokens", "Tokens generated");
        preemptions = counter("vllm:num_preemptions", "Times that a request lost its blocks to others");
        success = Counter.builder()
                .name("vllm:request_success")
                .help("Requests that ended, by finish reason")
                .labelNames(with("finished_reason"))
                .withoutExemplars()
                .register(registry);
        for (FinishReason reason : FinishReason.values()) {
            success.initLabelValues(valuesWith(reason.wireName()));
        }
        ttft = histogram(
                "vllm:time_to_first_token_seconds", "From a request's arrival to its first token", TTFT_SECONDS);
        interToken = histogram("vllm:inter_token_latency_seconds", "From one token to the next", TOKEN_SECONDS);
        endToEnd =
                histogram("vllm:e2e_request_latency_seconds", "From a request's arrival to its end", REQUEST_SECONDS);
        queue = histogram("vllm:request_queue_time_seconds", "Waiting to be scheduled", REQUEST_SECONDS);
        prefill = histogram("vllm:request_prefill_time_seconds", "From scheduling to the first token", REQUEST_SECONDS);
        decode = histogram("vllm:request_decode_time_seconds", "From the first token to the last", REQUEST_SECONDS);
        inference =
                histogram("vllm:request_inference_time_seconds", "From scheduling to the last token", REQUEST_SECONDS);
        perOutputToken = histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time from one token to the next of a request",
                TOKEN_SECONDS);
        stepTokens = histogram("vllm:iteration_tokens_total", "Tokens computed in a step", STEP_TOKENS);
        sequences = histogram("vllm:request_params_n", "The parameter n of requests", SEQUENCES);
        preemptionsOfRequests = histogram(
                "vllm:request_num_preemptions", "Times that requests lost their blocks to others", PREEMPTIONS);
    }

    /**
     * Adds a counter that is kept elsewhere; {@code _total} is added to the name.
     *
     * @param value read by the threads that scrape
     */
    public void addCounter(String name, String help, LongSupplier value) {
        CounterWithCallback.builder()
                .name(name)
                .help(help)
                .labelNames(with())
                .callback(to -> to.call(value.getAsLong(), labels))
                .register(registry);
    }

    /**
     * Adds a counter with a label, as {@link #addCounter}.
     *
     * @param values by the label's value
     */
    public void addCounters(String name, String help, String label, Map<String, LongSupplier> values) {
        CounterWithCallback.builder()
                .name(name)
                .help(help)
                .labelNames(with(label))
                .callback(to -> values.forEach((value, count) -> to.call(count.getAsLong(), valuesWith(value))))
                .register(registry);
    }

    /** Adds a gauge that is kept elsewhere, as {@link #addCounter}. */
    public void addGauge(String name, String help, LongSupplier value) {
        GaugeWithCallback.builder()
                .name(name)
                .help(help)
                .labelNames(with())
                .callback(to -> to.call(value.getAsLong(), labels))
                .register(registry);
    }

    /** 1, 2, 5, 10, 20, 50, ... up to and including {@code most}. */
    static double[] oneTwoFive(int most) {
        return IntStream.range(0, 10)
                .boxed()
                .flatMap(exponent -> Stream.of(1, 2, 5).map(mantissa -> mantissa * Math.pow(10, exponent)))
                .mapToDouble(Double::doubleValue)
                .filter(bound -> bound <= most)
                .toArray();
    }

    @Override
    public void onStart(EngineConfig config, int maxModelLen, DType dtype, int blocks) {
        // A connector of the user's own is not loaded a second time.
        CacheSource source = Optional.of(config.kvTransfer())
                .filter(transfer -> transfer.modulePath().isEmpty())
                .flatMap(KvConnectors::find)
                .map(KvConnector::source)
                .orElse(CacheSource.EXTERNAL_UNSPECIFIED);
        cachedElsewhere = cachedBySource.labelValues(valuesWith(source.label()));
        if (config.kvTransfer().isConsumer()) {
            Gauge byStage = Gauge.builder()
                    .name("vllm:num_requests_kv_fetch_by_stage")
                    .help("Waiting requests that load their KV from elsewhere, by how far that is")
                    .labelNames(with("stage"))
                    .withoutExemplars()
                    .register(registry);
            fetches = Optional.of(new Fetches(
                    byStage.labelValues(valuesWith("waiting_to_start")),
                    byStage.labelValues(valuesWith("in_progress")),
                    byStage.labelValues(valuesWith("completed_waiting"))));
        }
        double[] buckets = oneTwoFive(maxModelLen);
        lengths = Optional.of(new Lengths(
                histogram("vllm:request_prompt_tokens", "Prompt tokens of requests", buckets),
                histogram(
                        "vllm:request_prefill_kv_computed_tokens",
                        "Prompt tokens of requests that were computed here, not cached",
                        buckets),
                histogram("vllm:request_generation_tokens", "Tokens generated for requests", buckets),
                histogram(
                        "vllm:request_max_num_generation_tokens",
                        "Tokens of the longest sequence of requests",
                        buckets),
                histogram("vllm:request_params_max_tokens", "Tokens that requests may generate", buckets)));
        Gauge.builder()
                .name("vllm:cache_config_info")
                .help("How the KV cache is set up; always 1")
                .labelNames(with(
                        "block_size",
                        "cache_dtype",
                        "enable_prefix_caching",
                        "num_gpu_blocks",
                        "num_gpu_blocks_override",
                        "kv_cache_memory_bytes"))
                .withoutExemplars()
                .register(registry)
                .labelValues(valuesWith(
                        Integer.toString(config.blockSize()),
                        dtype.torchName(),
                        config.enablePrefixCaching() ? "True" : "False",
                        Integer.toString(blocks),
                        config.numBlocks().isPresent()
                                ? Integer.toString(config.numBlocks().getAsInt())
                                : "None",
                        config.numBlocks().isPresent() ? "None" : Long.toString(config.kvCacheBytes())))
                .set(1);
    }

    /** All series in Prometheus' text format, UTF-8; gauges have the values of {@code now}. */
    public byte[] scrape(EngineStatus now) {
        running.set(now.running());
        waiting.set(now.waiting());
        waitingDeferred.set(now.waitingForRemoteKv());
        waitingForCapacity.set(now.waiting() - now.waitingForRemoteKv());
        fetches.ifPresent(stages -> {
            stages.toStart().set(now.waitingToLoad());
            stages.inProgress().set(now.waitingForRemoteKv());
            stages.completed().set(now.waitingLoaded());
        });
        cacheUsage.set(now.totalBlocks() == 0 ? 0 : (double) now.usedBlocks() / now.totalBlocks());
        blocksUsed.set(now.usedBlocks());
        blocksTotal.set(now.totalBlocks());
        connectorBlocking.set(now.blocking().map(ConnectorCall::seconds).orElse(0.0));
        ByteArrayOutputStream text = new ByteArrayOutputStream(INITIAL_TEXT);
        try {
            writer.write(text, registry.scrape());
        } catch (IOException e) {
            throw new UncheckedIOException("cannot write to memory", e);
        }
        return text.toByteArray();
    }

    @Override
    public void onStep(StepStats stats) {
        prefixQueries.inc(stats.prefixCacheQueries());
        prefixHits.inc(stats.prefixCacheHits());
        externalQueries.inc(stats.externalQueries());
        externalHits.inc(stats.externalHits());
        generationTokens.inc(stats.generatedTokens());
        preemptions.inc(stats.preempted());
        if (stats.scheduledTokens() > 0) {
            stepTokens.observe(stats.scheduledTokens());
        }
    }

    @Override
    public void onFirstToken(double seconds, PromptTokens prompt) {
        ttft.observe(seconds);
        int cached = prompt.localCacheHit() + prompt.externalKvTransfer();
        promptTokens.inc(prompt.localCompute() + cached);
        localCompute.inc(prompt.localCompute());
        localCacheHit.inc(prompt.localCacheHit());
        externalKvTransfer.inc(prompt.externalKvTransfer());
        promptTokensCached.inc(cached);
        cachedOnDevice.inc(prompt.localCacheHit());
        cachedElsewhere.inc(prompt.externalKvTransfer());
    }

    @Override
    public void onNextToken(double seconds) {
        interToken.observe(seconds);
    }

    @Override
    public void onFinished(RequestStats stats) {
        success.labelValues(valuesWith(stats.reason().wireName())).inc();
        endToEnd.observe(stats.totalSeconds());
        preemptionsOfRequests.observe(stats.times().preemptions());
        queue.observe(stats.queueSeconds());
        prefill.observe(stats.prefillSeconds());
        decode.observe(stats.decodeSeconds());
        inference.observe(stats.prefillSeconds() + stats.decodeSeconds());
        perOutputToken.observe(stats.outputTokens() > 1 ? stats.decodeSeconds() / (stats.outputTokens() - 1) : 0);
        lengths.ifPresent(histograms -> {
            histograms.prompt().observe(stats.promptTokens());
            histograms.computed().observe(stats.localCompute());
            histograms.output().observe(stats.outputTokens());
            histograms.maxTokens().observe(stats.maxTokens());
        });
    }

    @Override
    public void onAllFinished(int n, int longestOutput) {
        sequences.observe(n);
        lengths.ifPresent(histograms -> histograms.longestOutput().observe(longestOutput));
    }

    @Override
    public void onMeasurements(List<Measurement> measurements) {
        for (Measurement measurement : measurements) {
            TreeMap<String, String> own = new TreeMap<>(measurement.labels());
            List<String> names = List.copyOf(own.keySet());
            String key = measurement.kind() + " " + measurement.name() + " " + names;
            measured.computeIfAbsent(key, _ -> register(measurement, names))
                    .ifPresent(sink -> sink.accept(List.copyOf(own.values()), measurement));
        }
    }

    /** Empty if the registry refuses the metric: one name with two kinds, or with a character that is not allowed. */
    private Optional<BiConsumer<List<String>, Measurement>> register(Measurement first, List<String> ownLabels) {
        String[] names = with(ownLabels.toArray(String[]::new));
        try {
            return Optional.of(
                    switch (first.kind()) {
                        case COUNTER -> {
                            Counter counter = Counter.builder()
                                    .name(first.name())
                                    .labelNames(names)
                                    .withoutExemplars()
                                    .register(registry);
                            yield (values, measurement) -> counter.labelValues(
                                            valuesWith(values.toArray(String[]::new)))
                                    .inc(Math.max(0, measurement.value()));
                        }
                        case GAUGE -> {
                            Gauge gauge = Gauge.builder()
                                    .name(first.name())
                                    .labelNames(names)
                                    .withoutExemplars()
                                    .register(registry);
                            yield (values, measurement) -> gauge.labelValues(valuesWith(values.toArray(String[]::new)))
                                    .set(measurement.value());
                        }
                        case SECONDS ->
                            distribution(
                                    first.name().endsWith("_seconds") ? first.name() : first.name() + "_seconds",
                                    names,
                                    TRANSFER_SECONDS);
                        case BYTES -> distribution(first.name(), names, TRANSFER_BYTES);
                        case ITEMS -> distribution(first.name(), names, TRANSFER_ITEMS);
                    });
        } catch (IllegalArgumentException e) {
            LOG.warn("measurement {} with labels {} is not shown: {}", first.name(), ownLabels, e.getMessage());
            return Optional.empty();
        }
    }

    private BiConsumer<List<String>, Measurement> distribution(String name, String[] names, double[] bounds) {
        Histogram histogram = Histogram.builder()
                .name(name)
                .classicOnly()
                .classicUpperBounds(bounds)
                .labelNames(names)
                .withoutExemplars()
                .register(registry);
        return (values, measurement) ->
                histogram.labelValues(valuesWith(values.toArray(String[]::new))).observe(measurement.value());
    }

    private GaugeDataPoint gauge(String name, String help) {
        return Gauge.builder()
                .name(name)
                .help(help)
                .labelNames(with())
                .withoutExemplars()
                .register(registry)
                .labelValues(labels);
    }

    /** {@code _total} is added to the name. */
    private CounterDataPoint counter(String name, String help) {
        return Counter.builder()
                .name(name)
                .help(help)
                .labelNames(with())
                .withoutExemplars()
                .register(registry)
                .labelValues(labels);
    }

    private DistributionDataPoint histogram(String name, String help, double[] buckets) {
        return Histogram.builder()
                .name(name)
                .help(help)
                .classicOnly()
                .classicUpperBounds(buckets)
                .labelNames(with())
                .withoutExemplars()
                .register(registry)
                .labelValues(labels);
    }

    private static String[] with(String... more) {
        return Stream.concat(LABELS.stream(), Stream.of(more)).toArray(String[]::new);
    }

    private String[] valuesWith(String... more) {
        List<String> all = new ArrayList<>(List.of(labels));
        all.addAll(List.of(more));
        return all.toArray(String[]::new);
    }
}
