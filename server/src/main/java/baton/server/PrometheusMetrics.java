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
import baton.server.EngineMetric.Buckets;
import baton.server.EngineMetric.Kind;
import io.prometheus.metrics.core.metrics.Counter;
import io.prometheus.metrics.core.metrics.CounterWithCallback;
import io.prometheus.metrics.core.metrics.Gauge;
import io.prometheus.metrics.core.metrics.GaugeWithCallback;
import io.prometheus.metrics.core.metrics.Histogram;
import io.prometheus.metrics.core.metrics.MetricWithFixedMetadata;
import io.prometheus.metrics.expositionformats.PrometheusTextFormatWriter;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import io.prometheus.metrics.model.snapshots.Labels;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Records an engine's metrics, which {@link EngineMetric} defines, for Prometheus. Each series is labelled {@code model_name} and
 * {@code engine="0"}. Connectors' measurements appear under their own names from their first value on.
 *
 * <p>Written by the engine's thread, read by any thread.
 */
public final class PrometheusMetrics implements EngineListener {
    static final String CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8";

    private static final Logger LOG = LoggerFactory.getLogger(PrometheusMetrics.class);

    /** First size of a scrape's text, in bytes. */
    private static final int INITIAL_TEXT = 64 << 10;

    /** Metrics that are registered when the engine starts, as they depend on its configuration. */
    private static final List<EngineMetric> AT_START = Arrays.stream(EngineMetric.values())
            .filter(metric -> metric == EngineMetric.FETCHES
                    || metric == EngineMetric.CACHE_CONFIG
                    || metric.kind == Kind.HISTOGRAM && metric.buckets.length == 0)
            .toList();

    private final PrometheusRegistry registry = new PrometheusRegistry();

    /** Without {@code _created} samples, which vLLM does not have. */
    private final PrometheusTextFormatWriter writer = PrometheusTextFormatWriter.builder()
            .setIncludeCreatedTimestamps(false)
            .build();

    /** The labels of all metrics. */
    private final Labels common;

    private final Map<EngineMetric, Recorder> recorders = new ConcurrentHashMap<>();
    /** The source that the engine's connector stands for. */
    private volatile CacheSource source = CacheSource.EXTERNAL_UNSPECIFIED;

    /** Connectors' metrics by name; for the engine's thread only. Empty: refused, and logged once. */
    private final Map<String, Optional<Recorder>> measured = new HashMap<>();

    /** Adds a value to a metric's series with those values of its own labels, or sets it. */
    private interface Recorder {
        void record(double value, String... labels);
    }

    public PrometheusMetrics(String modelName) {
        common = Labels.of("model_name", modelName, "engine", "0");
        for (EngineMetric metric : EngineMetric.values()) {
            if (!AT_START.contains(metric)) {
                register(metric, metric.buckets);
            }
        }
        Stream.of("local_compute", "local_cache_hit", "external_kv_transfer")
                .forEach(from -> record(EngineMetric.PROMPT_TOKENS_BY_SOURCE, 0, from));
        Stream.concat(Stream.of("device"), Stream.of(CacheSource.values()).map(CacheSource::label))
                .forEach(from -> record(EngineMetric.PROMPT_TOKENS_CACHED_BY_SOURCE, 0, from));
        record(EngineMetric.LORA_REQUESTS, 1, "0", "", "");
        for (FinishReason reason : FinishReason.values()) {
            record(EngineMetric.SUCCESS, 0, reason.wireName());
        }
    }

    /**
     * Adds a counter that is kept elsewhere; {@code _total} is added to the name.
     *
     * @param value read by the threads that scrape
     */
    public void addCounter(String name, String help, LongSupplier value) {
        register(CounterWithCallback.builder().callback(to -> to.call(value.getAsLong())), name, help);
    }

    /**
     * Adds a counter with a label, as {@link #addCounter}.
     *
     * @param values by the label's value
     */
    public void addCounters(String name, String help, String label, Map<String, LongSupplier> values) {
        register(
                CounterWithCallback.builder()
                        .callback(to -> values.forEach((value, count) -> to.call(count.getAsLong(), value))),
                name,
                help,
                label);
    }

    /** Adds a gauge that is kept elsewhere, as {@link #addCounter}. */
    public void addGauge(String name, String help, LongSupplier value) {
        register(GaugeWithCallback.builder().callback(to -> to.call(value.getAsLong())), name, help);
    }

    /** Adds the metrics of the KV cache under the names that vLLM had for them, which some routers read. */
    public void addGpuNames() {
        Counter queries = register(
                Counter.builder().withoutExemplars(),
                "vllm:gpu_prefix_cache_queries",
                EngineMetric.PREFIX_QUERIES.help);
        Counter hits = register(
                Counter.builder().withoutExemplars(), "vllm:gpu_prefix_cache_hits", EngineMetric.PREFIX_HITS.help);
        register(
                GaugeWithCallback.builder()
                        .callback(to -> to.call(queries.get() == 0 ? 0 : hits.get() / queries.get())),
                "vllm:gpu_prefix_cache_hit_rate",
                "Share of tokens looked up in the prefix cache that were found, since the start");
        alsoRecord(EngineMetric.PREFIX_QUERIES, (value, _) -> queries.inc(value));
        alsoRecord(EngineMetric.PREFIX_HITS, (value, _) -> hits.inc(value));
        alsoRecord(
                EngineMetric.CACHE_USAGE,
                recorder(Kind.GAUGE, "vllm:gpu_cache_usage_perc", EngineMetric.CACHE_USAGE.help, Buckets.NONE));
    }

    private void alsoRecord(EngineMetric metric, Recorder second) {
        recorders.computeIfPresent(metric, (_, first) -> (value, own) -> {
            first.record(value, own);
            second.record(value, own);
        });
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
        source = Optional.of(config.kvTransfer())
                .filter(transfer -> transfer.modulePath().isEmpty())
                .flatMap(KvConnectors::find)
                .map(KvConnector::source)
                .orElse(CacheSource.EXTERNAL_UNSPECIFIED);
        double[] buckets = oneTwoFive(maxModelLen);
        for (EngineMetric metric : AT_START) {
            if (metric != EngineMetric.FETCHES || config.kvTransfer().isConsumer()) {
                register(metric, buckets);
            }
        }
        record(
                EngineMetric.CACHE_CONFIG,
                1,
                Integer.toString(config.blockSize()),
                dtype.torchName(),
                config.enablePrefixCaching() ? "True" : "False",
                Integer.toString(blocks),
                config.numBlocks().isPresent()
                        ? Integer.toString(config.numBlocks().getAsInt())
                        : "None",
                config.numBlocks().isPresent() ? "None" : Long.toString(config.kvCacheBytes()));
    }

    /** All series in Prometheus' text format, UTF-8; gauges have the values of {@code now}. */
    public byte[] scrape(EngineStatus now) {
        record(EngineMetric.RUNNING, now.running());
        record(EngineMetric.WAITING, now.waiting());
        record(EngineMetric.WAITING_BY_REASON, now.waitingForRemoteKv(), "deferred");
        record(EngineMetric.WAITING_BY_REASON, now.waiting() - now.waitingForRemoteKv(), "capacity");
        record(EngineMetric.FETCHES, now.waitingToLoad(), "waiting_to_start");
        record(EngineMetric.FETCHES, now.waitingForRemoteKv(), "in_progress");
        record(EngineMetric.FETCHES, now.waitingLoaded(), "completed_waiting");
        record(EngineMetric.CACHE_USAGE, now.totalBlocks() == 0 ? 0 : (double) now.usedBlocks() / now.totalBlocks());
        record(EngineMetric.BLOCKS_USED, now.usedBlocks());
        record(EngineMetric.BLOCKS_TOTAL, now.totalBlocks());
        record(
                EngineMetric.CONNECTOR_BLOCKING,
                now.blocking().map(ConnectorCall::seconds).orElse(0.0));
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
        record(EngineMetric.PREFIX_QUERIES, stats.prefixCacheQueries());
        record(EngineMetric.PREFIX_HITS, stats.prefixCacheHits());
        record(EngineMetric.EXTERNAL_QUERIES, stats.externalQueries());
        record(EngineMetric.EXTERNAL_HITS, stats.externalHits());
        record(EngineMetric.GENERATION_TOKENS, stats.generatedTokens());
        record(EngineMetric.PREEMPTIONS, stats.preempted());
        if (stats.scheduledTokens() > 0) {
            record(EngineMetric.STEP_TOKENS, stats.scheduledTokens());
        }
    }

    @Override
    public void onFirstToken(double seconds, PromptTokens prompt) {
        int cached = prompt.localCacheHit() + prompt.externalKvTransfer();
        record(EngineMetric.TIME_TO_FIRST_TOKEN, seconds);
        record(EngineMetric.PROMPT_TOKENS, prompt.localCompute() + cached);
        record(EngineMetric.PROMPT_TOKENS_BY_SOURCE, prompt.localCompute(), "local_compute");
        record(EngineMetric.PROMPT_TOKENS_BY_SOURCE, prompt.localCacheHit(), "local_cache_hit");
        record(EngineMetric.PROMPT_TOKENS_BY_SOURCE, prompt.externalKvTransfer(), "external_kv_transfer");
        record(EngineMetric.PROMPT_TOKENS_CACHED, cached);
        record(EngineMetric.PROMPT_TOKENS_CACHED_BY_SOURCE, prompt.localCacheHit(), "device");
        record(EngineMetric.PROMPT_TOKENS_CACHED_BY_SOURCE, prompt.externalKvTransfer(), source.label());
    }

    @Override
    public void onNextToken(double seconds) {
        record(EngineMetric.INTER_TOKEN, seconds);
    }

    @Override
    public void onFinished(RequestStats stats) {
        record(EngineMetric.SUCCESS, 1, stats.reason().wireName());
        record(EngineMetric.END_TO_END, stats.totalSeconds());
        record(EngineMetric.PREEMPTIONS_OF_REQUESTS, stats.times().preemptions());
        record(EngineMetric.QUEUE, stats.queueSeconds());
        record(EngineMetric.PREFILL, stats.prefillSeconds());
        record(EngineMetric.DECODE, stats.decodeSeconds());
        record(EngineMetric.INFERENCE, stats.prefillSeconds() + stats.decodeSeconds());
        int generated = stats.outputTokens() - stats.replayedTokens();
        record(EngineMetric.PER_OUTPUT_TOKEN, generated > 1 ? stats.decodeSeconds() / (generated - 1) : 0);
        record(EngineMetric.REQUEST_PROMPT_TOKENS, stats.promptTokens());
        record(EngineMetric.REQUEST_COMPUTED_TOKENS, stats.prompt().localCompute());
        record(EngineMetric.REQUEST_OUTPUT_TOKENS, stats.outputTokens());
        record(EngineMetric.REQUEST_MAX_TOKENS, stats.maxTokens());
    }

    @Override
    public void onAllFinished(int n, int longestOutput) {
        record(EngineMetric.SEQUENCES, n);
        record(EngineMetric.REQUEST_LONGEST_OUTPUT, longestOutput);
    }

    @Override
    public void onMeasurements(List<Measurement> measurements) {
        for (Measurement measurement : measurements) {
            TreeMap<String, String> own = new TreeMap<>(measurement.labels());
            String[] names = own.keySet().toArray(String[]::new);
            String key = measurement.kind() + " " + measurement.name() + " " + own.keySet();
            measured.computeIfAbsent(key, _ -> register(measurement, names))
                    .ifPresent(recorder ->
                            recorder.record(measurement.value(), own.values().toArray(String[]::new)));
        }
    }

    /** Empty if the registry refuses the metric: one name with two kinds, or with a character that is not allowed. */
    private Optional<Recorder> register(Measurement first, String[] labels) {
        String name = first.name();
        try {
            return Optional.of(
                    switch (first.kind()) {
                        case COUNTER -> {
                            Recorder counter = recorder(Kind.COUNTER, name, "", Buckets.NONE, labels);
                            yield (value, own) -> counter.record(Math.max(0, value), own);
                        }
                        case GAUGE -> recorder(Kind.GAUGE, name, "", Buckets.NONE, labels);
                        case SECONDS ->
                            recorder(
                                    Kind.HISTOGRAM,
                                    name.endsWith("_seconds") ? name : name + "_seconds",
                                    "",
                                    Buckets.ofSeconds(name),
                                    labels);
                        case BYTES -> recorder(Kind.HISTOGRAM, name, "", Buckets.TRANSFER_BYTES, labels);
                        case ITEMS -> recorder(Kind.HISTOGRAM, name, "", Buckets.TRANSFER_ITEMS, labels);
                    });
        } catch (IllegalArgumentException e) {
            LOG.warn("measurement {} with labels {} is not shown: {}", name, List.of(labels), e.getMessage());
            return Optional.empty();
        }
    }

    private void register(EngineMetric metric, double[] buckets) {
        recorders.put(metric, recorder(metric.kind, metric.title, metric.help, buckets, metric.labels));
    }

    /** Records a value, unless the metric is not registered. */
    private void record(EngineMetric metric, double value, String... labels) {
        Optional.ofNullable(recorders.get(metric)).ifPresent(recorder -> recorder.record(value, labels));
    }

    /** Registers a metric. Series have no exemplars, which would need a tracing library. */
    private Recorder recorder(Kind kind, String name, String help, double[] buckets, String... labels) {
        return switch (kind) {
            case COUNTER -> {
                Counter counter = register(Counter.builder().withoutExemplars(), name, help, labels);
                yield (value, own) -> counter.labelValues(own).inc(value);
            }
            case GAUGE -> {
                Gauge gauge = register(Gauge.builder().withoutExemplars(), name, help, labels);
                yield (value, own) -> gauge.labelValues(own).set(value);
            }
            case HISTOGRAM -> {
                Histogram histogram = register(
                        Histogram.builder()
                                .classicOnly()
                                .classicUpperBounds(buckets)
                                .withoutExemplars(),
                        name,
                        help,
                        labels);
                yield (value, own) -> histogram.labelValues(own).observe(value);
            }
        };
    }

    private <B extends MetricWithFixedMetadata.Builder<B, M>, M extends MetricWithFixedMetadata> M register(
            B builder, String name, String help, String... labels) {
        B described = help.isEmpty() ? builder : builder.help(help);
        return described.name(name).constLabels(common).labelNames(labels).register(registry);
    }
}
