package baton.router;

import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.Timer;
import io.micrometer.prometheusmetrics.PrometheusConfig;
import io.micrometer.prometheusmetrics.PrometheusMeterRegistry;
import java.time.Duration;
import java.util.EnumMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;

/** The router's own metrics, {@code baton:router_*}. Any thread. */
final class RouterMetrics implements AutoCloseable {

    /** How a request ended; the label {@code outcome}. */
    enum Outcome {
        /** An answer below 500 reached the client whole. */
        OK,
        /** Refused: malformed, too large, or turned down by prefill. */
        REJECTED,
        /** More requests in flight than allowed, or none of a role's instances is healthy. */
        UNAVAILABLE,
        PREFILL_FAILED,
        /** Decode gave no answer, or one of 500 and above. */
        DECODE_FAILED,
        /** The answer broke off after its first byte. */
        DECODE_BROKEN,
        /** The client left, or stopped reading. */
        CLIENT_DISCONNECTED
    }

    /** Why a decode instance computed a prompt itself; the label {@code reason}. */
    enum LocalPrefillReason {
        /** The prompt is below the threshold. */
        SHORT,
        /** No prefill instance is healthy. */
        UNAVAILABLE,
        /** The prefill leg failed for good. */
        FAILED;

        final String label = name().toLowerCase(Locale.ROOT);
    }

    /** What became of a message of an instance that it is there; the label {@code result}. */
    enum RegistrationResult {
        /** It was not known. */
        JOINED,
        /** It was known, and stays so. */
        RENEWED,
        /** It has not said for too long that it is there. */
        EXPIRED,
        /** The message is not what it must be. */
        MALFORMED,
        /** An address is in no network that is allowed. */
        NOT_ALLOWED,
        /** An address is the router's own. */
        OWN_ADDRESS,
        /** As many as may have registered. */
        FULL,
        /** As many as may have registered over one connection, or from one address. */
        SENDER_FULL;

        final String label = name().toLowerCase(Locale.ROOT);
    }

    /** What came of asking an instance where its connector is; the label {@code result}. */
    enum AskedResult {
        /** It said so. */
        TOLD,
        /** It has nothing to say, or does not know the question. */
        UNTOLD,
        /** No answer, or a bad one. */
        FAILED;

        final String label = name().toLowerCase(Locale.ROOT);
    }

    private static final Duration[] BUCKETS = List.of(
                    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 300_000)
            .stream()
            .map(Duration::ofMillis)
            .toArray(Duration[]::new);

    private final PrometheusMeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
    private final Map<Outcome, Counter> requests = new EnumMap<>(Outcome.class);
    private final Map<Instance.Role, Counter> retries = new EnumMap<>(Instance.Role.class);
    private final Map<LocalPrefillReason, Counter> localPrefills = new EnumMap<>(LocalPrefillReason.class);
    private final Map<RegistrationResult, Counter> registrations = new EnumMap<>(RegistrationResult.class);
    private final Map<AskedResult, Counter> asked = new EnumMap<>(AskedResult.class);
    private final AtomicInteger running;

    final Timer prefill = timer("baton:router_prefill", "Prefill leg, from sending to the whole answer");
    final Timer decodeFirstByte = timer("baton:router_decode_first_byte", "Decode leg, from sending to its first byte");
    final Timer decode = timer("baton:router_decode", "Decode leg, from sending to the whole answer");
    final Timer firstByte = timer("baton:router_first_byte", "From a request to the first byte of its answer");
    final Timer request = timer("baton:router_request", "From a request to the end of its answer");
    final Counter carried = handoffs("carried");
    final Counter notCarried = handoffs("none");
    final Counter paramsDropped = counter(
            "baton:router_client_kv_params_dropped", "Requests whose kv_transfer_params did not go to the instances");
    final Counter disconnects =
            counter("baton:router_client_disconnects", "Clients that left before their answer ended");

    RouterMetrics(InstanceSet prefills, InstanceSet decodes, AtomicInteger running) {
        this.running = running;
        for (Outcome outcome : Outcome.values()) {
            requests.put(
                    outcome,
                    counter(
                            "baton:router_requests",
                            "Requests by how they ended",
                            "outcome",
                            outcome.name().toLowerCase(Locale.ROOT)));
        }
        for (LocalPrefillReason reason : LocalPrefillReason.values()) {
            localPrefills.put(
                    reason,
                    counter(
                            "baton:router_local_prefills",
                            "Prompts left to a decode instance",
                            "reason",
                            reason.label));
        }
        for (RegistrationResult result : RegistrationResult.values()) {
            registrations.put(
                    result,
                    counter(
                            "baton:router_registrations",
                            "Messages of instances that they are there, and their absence",
                            "result",
                            result.label));
        }
        for (AskedResult result : AskedResult.values()) {
            asked.put(
                    result,
                    counter(
                            "baton:router_asked_ahead",
                            "Questions to prefill instances where their connectors are",
                            "result",
                            result.label));
        }
        for (Instance.Role role : Instance.Role.values()) {
            InstanceSet set = role == Instance.Role.PREFILL ? prefills : decodes;
            retries.put(role, counter("baton:router_retries", "Legs sent to another instance", "role", role.label));
            Gauge.builder("baton:router_instances_up", set, InstanceSet::up)
                    .description("Healthy instances")
                    .tag("role", role.label)
                    .register(registry);
            Gauge.builder("baton:router_instances", set, s -> s.all().size())
                    .description("Configured and registered instances")
                    .tag("role", role.label)
                    .register(registry);
        }
        Gauge.builder("baton:router_requests_running", this.running, AtomicInteger::get)
                .description("Requests in flight")
                .register(registry);
    }

    void ended(Outcome outcome) {
        Objects.requireNonNull(requests.get(outcome)).increment();
    }

    void prefilledLocally(LocalPrefillReason reason) {
        Objects.requireNonNull(localPrefills.get(reason)).increment();
    }

    void registration(RegistrationResult result) {
        Objects.requireNonNull(registrations.get(result)).increment();
    }

    void asked(AskedResult result) {
        Objects.requireNonNull(asked.get(result)).increment();
    }

    void retried(Instance.Role role) {
        Objects.requireNonNull(retries.get(role)).increment();
    }

    /** All metrics in Prometheus' text format. */
    String scrape() {
        return registry.scrape();
    }

    @Override
    public void close() {
        registry.close();
    }

    private Timer timer(String name, String description) {
        return Timer.builder(name)
                .description(description)
                .serviceLevelObjectives(BUCKETS)
                .register(registry);
    }

    private Counter handoffs(String params) {
        return counter(
                "baton:router_handoffs",
                "Hand-offs, by whether prefill's kv_transfer_params went to decode",
                "params",
                params);
    }

    private Counter counter(String name, String description, String... tags) {
        return Counter.builder(name).description(description).tags(tags).register(registry);
    }
}
