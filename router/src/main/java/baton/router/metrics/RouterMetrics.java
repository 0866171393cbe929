package baton.router.metrics;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.Meter;
import io.micrometer.core.instrument.Tag;
import io.micrometer.core.instrument.Timer;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.stream.Stream;

/** Records the {@link RouterMetric}s. A value of a label is a {@link Label} or a text. Any thread. */
public final class RouterMetrics implements AutoCloseable {
    /** A value of a label: an enum's constant, in lower case. */
    public interface Label {
        String name();

        default String label() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** How a request ended; the label {@code outcome}. */
    public enum Outcome implements Label {
        /** An answer below 500 reached the client whole. */
        OK,
        /** Refused: malformed, too large, or rejected by prefill. */
        REJECTED,
        /** More requests in flight than allowed, or none of a role's instances is healthy. */
        UNAVAILABLE,
        PREFILL_FAILED,
        /** Decode gave no answer, or one of 500 and above. */
        DECODE_FAILED,
        /** The answer broke off after its first byte. */
        DECODE_BROKEN,
        /** The client disconnected or stopped reading. */
        CLIENT_DISCONNECTED
    }

    /** The outcome of a stream after its instance broke off; the label {@code outcome}. */
    public enum ContinuationOutcome implements Label {
        CONTINUED,
        /** No instance continues it; as the client has nothing of it, it begins anew. */
        ANEW,
        FAILED,
        /** The router has not the tokens that the client has. */
        IMPOSSIBLE
    }

    /** Why a decode instance computed a prompt itself; the label {@code reason}. */
    public enum LocalPrefillReason implements Label {
        SHORT("the prompt is shorter than the threshold"),
        UNAVAILABLE("no prefill instance is healthy"),
        FAILED("the prefill leg failed for good"),
        CACHED("the decode instance has nearly all of the prompt"),
        BUSY("all prefill instances are loaded"),
        GOAL("the goals are expected to be kept better so");

        private final String words;

        LocalPrefillReason(String words) {
            this.words = words;
        }

        /** The reason in words. */
        public String words() {
            return words;
        }
    }

    /** The result of an instance's registration message, or of its absence; the label {@code result}. */
    public enum RegistrationResult implements Label {
        /** The instance was not known. */
        JOINED,
        /** The instance was known and stays registered. */
        RENEWED,
        /** No registration message within the time to live. */
        EXPIRED,
        /** The message is malformed. */
        MALFORMED,
        /** An address is in no network that is allowed. */
        NOT_ALLOWED,
        /** An address is the router's own. */
        OWN_ADDRESS,
        /** The most instances allowed have registered. */
        FULL,
        /** The most instances allowed have registered over one connection, or from one address. */
        SENDER_FULL;
    }

    /** The result of a connector address query; the label {@code result}. */
    public enum AddressQueryResult implements Label {
        /** The answer has the address. */
        TOLD,
        /** The instance has no connector address, or does not know the query. */
        UNTOLD,
        /** No answer, or a malformed one. */
        FAILED;
    }

    /** How the tokens of a prompt became known; the label {@code result}. */
    public enum TokenizeResult implements Label {
        /** The request has them. */
        GIVEN,
        /** An instance has told them. */
        ASKED,
        /** No instance has told them in time. */
        FAILED;
    }

    /** Whether a client's request was let in; the label {@code result}. */
    public enum AdmissionResult implements Label {
        ADMITTED,
        /** No key, or one that is not known. */
        UNKNOWN,
        /** A limit of the key is reached. */
        LIMITED;
    }

    /** Where a prompt is computed; the label {@code prefill}. */
    public enum PrefillWay implements Label {
        REMOTE,
        LOCAL
    }

    /** Whether prefill's {@code kv_transfer_params} went to decode; the label {@code params}. */
    public enum Carried implements Label {
        CARRIED,
        NONE
    }

    /** The value of a metric without labels. */
    private static final List<Object> ALONE = List.of();

    static final Object[] NO_LABEL = {ALONE};

    private static final Duration[] BUCKETS = Stream.of(
                    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 300_000)
            .map(Duration::ofMillis)
            .toArray(Duration[]::new);

    private final PrometheusMeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);

    /** By the value of the only label, or the list of values. */
    private final Map<RouterMetric, Map<Object, Meter>> meters = new EnumMap<>(RouterMetric.class);

    public RouterMetrics() {
        for (RouterMetric metric : RouterMetric.values()) {
            meters.put(metric, new ConcurrentHashMap<>());
            metric.shown.forEach(value -> show(metric, value));
        }
    }

    /** Shows a metric with that value of its label before it is recorded. */
    public void show(RouterMetric metric, Object value) {
        switch (metric.kind) {
            case COUNTER -> counter(metric, value);
            case TIMER -> timer(metric, value);
            case GAUGE -> throw new IllegalArgumentException(metric + " is watched");
        }
    }

    public void count(RouterMetric metric) {
        counter(metric, ALONE).increment();
    }

    public void count(RouterMetric metric, Object value) {
        counter(metric, value).increment();
    }

    public void count(RouterMetric metric, Object first, Object second) {
        add(metric, 1, first, second);
    }

    public void add(RouterMetric metric, long amount, Object first, Object second) {
        counter(metric, List.of(first, second)).increment(amount);
    }

    public void time(RouterMetric metric, long nanos) {
        time(metric, nanos, ALONE);
    }

    public void time(RouterMetric metric, long nanos, Object value) {
        timer(metric, value).record(nanos, TimeUnit.NANOSECONDS);
    }

    /** Reads a gauge or a counter at each scrape, unless it is read already. The registry has weak references to this object only. */
    public void watch(RouterMetric metric, LongSupplier source, Object... values) {
        var unusedMeter = meter(
                metric,
                List.of(values),
                tags -> metric.kind == RouterMetric.Kind.GAUGE
                        ? Gauge.builder(metric.title, source::getAsLong)
                                .description(metric.description)
                                .tags(tags)
                                .register(registry)
                        : FunctionCounter.builder(metric.title, this, _ -> source.getAsLong())
                                .description(metric.description)
                                .tags(tags)
                                .register(registry));
    }

    private Counter counter(RouterMetric metric, Object value) {
        return (Counter) meter(
                metric,
                value,
                tags -> Counter.builder(metric.title)
                        .description(metric.description)
                        .tags(tags)
                        .register(registry));
    }

    private Timer timer(RouterMetric metric, Object value) {
        return (Timer) meter(
                metric,
                value,
                tags -> Timer.builder(metric.title)
                        .description(metric.description)
                        .tags(tags)
                        .serviceLevelObjectives(BUCKETS)
                        .register(registry));
    }

    /** That of a value, which is made when it is asked for first. */
    private Meter meter(RouterMetric metric, Object value, Function<List<Tag>, Meter> make) {
        Map<Object, Meter> known = Objects.requireNonNull(meters.get(metric));
        Meter meter = known.get(value);
        return meter != null ? meter : known.computeIfAbsent(value, _ -> make.apply(tags(metric, value)));
    }

    private static List<Tag> tags(RouterMetric metric, Object value) {
        List<?> values = value instanceof List<?> several ? several : List.of(value);
        List<Tag> tags = new ArrayList<>();
        for (int i = 0; i < metric.labels.size(); i++) {
            Object each = values.get(i);
            tags.add(Tag.of(metric.labels.get(i), each instanceof Label label ? label.label() : each.toString()));
        }
        return tags;
    }

    /** All metrics in Prometheus' text format. */
    public String scrape() {
        return registry.scrape();
    }

    @Override
    public void close() {
        registry.close();
    }
}
