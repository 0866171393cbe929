package baton.router.metrics;

import baton.trace.OtlpExporter;
import io.micrometer.core.instrument.Counter;
import io.micrometer.core.instrument.FunctionCounter;
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
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.IntSupplier;
import java.util.function.LongSupplier;
import java.util.function.ToDoubleFunction;

/** The router's own metrics, {@code baton:router_*}. Any thread. */
public final class RouterMetrics implements AutoCloseable {

    /** How a request ended; the label {@code outcome}. */
    public enum Outcome {
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

    /** Why a decode instance computed a prompt itself; the label {@code reason}. */
    public enum LocalPrefillReason {
        SHORT("the prompt is shorter than the threshold"),
        UNAVAILABLE("no prefill instance is healthy"),
        FAILED("the prefill leg failed for good"),
        CACHED("the decode instance has nearly all of the prompt"),
        BUSY("all prefill instances are loaded"),
        GOAL("the goals are expected to be kept better so");

        private final String label = name().toLowerCase(Locale.ROOT);
        private final String words;

        LocalPrefillReason(String words) {
            this.words = words;
        }

        /** The reason in words. */
        public String words() {
            return words;
        }

        /** The label's value. */
        public String label() {
            return label;
        }
    }

    /** The result of an instance's registration message, or of its absence; the label {@code result}. */
    public enum RegistrationResult {
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

        private final String label = name().toLowerCase(Locale.ROOT);

        /** The label's value. */
        public String label() {
            return label;
        }
    }

    /** The result of a connector address query; the label {@code result}. */
    public enum AddressQueryResult {
        /** The answer has the address. */
        TOLD,
        /** The instance has no connector address, or does not know the query. */
        UNTOLD,
        /** No answer, or a malformed one. */
        FAILED;

        private final String label = name().toLowerCase(Locale.ROOT);

        /** The label's value. */
        public String label() {
            return label;
        }
    }

    /** How the tokens of a prompt became known; the label {@code result}. */
    public enum TokenizeResult {
        /** The request has them. */
        GIVEN,
        /** An instance has told them. */
        ASKED,
        /** No instance has told them in time. */
        FAILED;

        private final String label = name().toLowerCase(Locale.ROOT);
    }

    /**
     * What came of instances' KV events.
     *
     * @param live publishers that are followed
     * @param blocks that they hold
     * @param batches messages that came
     * @param replayed messages that were asked for
     * @param lost times that what was known of a publisher became void
     * @param malformed messages that could not be read
     */
    public record KvEvents(
            IntSupplier live,
            LongSupplier blocks,
            LongSupplier batches,
            LongSupplier replayed,
            LongSupplier lost,
            LongSupplier malformed) {}

    /** Whether a client's request was let in; the label {@code result}. */
    public enum AdmissionResult {
        ADMITTED,
        /** No key, or one that is not known. */
        UNKNOWN,
        /** A limit of the key is reached. */
        LIMITED;

        private final String label = name().toLowerCase(Locale.ROOT);
    }

    /**
     * What a client sees of a completion.
     *
     * @param firstToken from the request to the first byte of its answer
     * @param interToken between two events of its stream
     */
    public record ClientTimes(Timer firstToken, Timer interToken) {}

    private static final Duration[] BUCKETS = List.of(
                    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000, 120_000, 300_000)
            .stream()
            .map(Duration::ofMillis)
            .toArray(Duration[]::new);

    private final PrometheusMeterRegistry registry = new PrometheusMeterRegistry(PrometheusConfig.DEFAULT);
    private final Map<Outcome, Counter> requests = new EnumMap<>(Outcome.class);
    /** By role. */
    private final Map<String, Counter> retries = new ConcurrentHashMap<>();

    /** By role and reason. */
    private final Map<List<String>, Counter> choices = new ConcurrentHashMap<>();

    private final Map<List<String>, Counter> files = new ConcurrentHashMap<>();

    /** By name. */
    private final Map<String, Counter> flows = new ConcurrentHashMap<>();

    /** By way and reason. */
    private final Map<List<String>, Counter> goalDecisions = new ConcurrentHashMap<>();

    private final Map<List<String>, Counter> promptBytes = new ConcurrentHashMap<>();

    /** By key and result. */
    private final Map<List<String>, Counter> clients = new ConcurrentHashMap<>();

    private final Set<String> clientGauges = ConcurrentHashMap.newKeySet();

    private final Map<TokenizeResult, Counter> tokenized = new ConcurrentHashMap<>();

    private final Map<LocalPrefillReason, Counter> localPrefills = new EnumMap<>(LocalPrefillReason.class);
    private final Map<RegistrationResult, Counter> registrations = new EnumMap<>(RegistrationResult.class);
    private final Map<AddressQueryResult, Counter> addressQueries = new EnumMap<>(AddressQueryResult.class);

    public final Timer prefill = timer("baton:router_prefill", "Prefill leg, from sending to the whole answer");
    public final Timer decodeFirstByte =
            timer("baton:router_decode_first_byte", "Decode leg, from sending to its first byte");
    public final Timer decode = timer("baton:router_decode", "Decode leg, from sending to the whole answer");
    public final Timer firstByte = timer("baton:router_first_byte", "From a request to the first byte of its answer");
    public final Timer request = timer("baton:router_request", "From a request to the end of its answer");
    /** Of completions with a prompt that a prefill instance computes. */
    public final ClientTimes prefilledRemotely = clientTimes("remote");

    /** Of completions with a prompt that the decode instance computes. */
    public final ClientTimes prefilledLocally = clientTimes("local");

    public final Counter carried = handoffs("carried");
    public final Counter notCarried = handoffs("none");
    public final Counter promptsDiffer = counter(
            "baton:router_prompts_differ",
            "Prompts that have other numbers of tokens at the prefill and the decode instance");
    public final Counter addressesRefused = counter(
            "baton:router_client_addresses_refused",
            "Requests refused as their kv_transfer_params or media would lead instances to addresses");
    public final Counter disconnects =
            counter("baton:router_client_disconnects", "Clients that left before their answer ended");

    /** @param running requests in flight */
    public RouterMetrics(IntSupplier running) {
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
        for (AddressQueryResult result : AddressQueryResult.values()) {
            addressQueries.put(
                    result,
                    counter(
                            "baton:router_asked_ahead",
                            "Questions to prefill instances where their connectors are",
                            "result",
                            result.label));
        }
        Gauge.builder("baton:router_requests_running", running::getAsInt)
                .description("Requests in flight")
                .register(registry);
    }

    /**
     * Adds the metrics of one role.
     *
     * @param up healthy instances
     * @param known configured and registered instances
     */
    public void addRole(String role, IntSupplier up, IntSupplier known) {
        retries.put(role, counter("baton:router_retries", "Legs sent to another instance", "role", role));
        Gauge.builder("baton:router_instances_up", up::getAsInt)
                .description("Healthy instances")
                .tag("role", role)
                .register(registry);
        Gauge.builder("baton:router_instances", known::getAsInt)
                .description("Configured and registered instances")
                .tag("role", role)
                .register(registry);
    }

    /** Adds the number of a role's instances in a state. */
    public void addState(String role, String state, IntSupplier count) {
        Gauge.builder("baton:router_instances_by_state", count::getAsInt)
                .description("Instances by whether they get requests, and why not")
                .tag("role", role)
                .tag("state", state)
                .register(registry);
    }

    /** Adds the numbers of spans that an exporter has sent and dropped. */
    public void addSpans(OtlpExporter exporter) {
        spans("exported", exporter, OtlpExporter::exported);
        spans("dropped", exporter, OtlpExporter::dropped);
    }

    /** Adds the metrics of KV events. */
    public void addKvEvents(KvEvents events) {
        Gauge.builder("baton:router_kv_event_publishers", () -> events.live.getAsInt())
                .description("Publishers of KV events that are followed")
                .register(registry);
        Gauge.builder("baton:router_kv_event_blocks", () -> events.blocks.getAsLong())
                .description("Blocks that instances hold, by their KV events")
                .register(registry);
        kvEvents("baton:router_kv_event_batches", "Batches of KV events received", events.batches);
        kvEvents(
                "baton:router_kv_event_replayed_batches",
                "Batches of KV events that were missed and asked for",
                events.replayed);
        kvEvents(
                "baton:router_kv_event_losses",
                "Times that all that was known of a publisher's blocks became void",
                events.lost);
        kvEvents(
                "baton:router_kv_event_malformed_batches",
                "Batches of KV events that could not be read",
                events.malformed);
        for (TokenizeResult result : TokenizeResult.values()) {
            tokenized.put(
                    result,
                    counter(
                            "baton:router_prompt_tokens_known",
                            "Prompts by how their tokens became known",
                            "result",
                            result.label));
        }
    }

    private void kvEvents(String name, String description, LongSupplier count) {
        FunctionCounter.builder(name, count, LongSupplier::getAsLong)
                .description(description)
                .register(registry);
    }

    /** Only after {@link #addKvEvents}. */
    public void tokenized(TokenizeResult result) {
        Objects.requireNonNull(tokenized.get(result)).increment();
    }

    /** The registry keeps no exporter alive. */
    private void spans(String result, OtlpExporter exporter, ToDoubleFunction<OtlpExporter> count) {
        FunctionCounter.builder("baton:trace_spans", exporter, count)
                .description("Spans of requests, by whether a collector has them")
                .tag("result", result)
                .register(registry);
    }

    public void ended(Outcome outcome) {
        Objects.requireNonNull(requests.get(outcome)).increment();
    }

    /**
     * An instance was chosen for a leg.
     *
     * @param why what decided
     * @param bytes of the prompt
     * @param known bytes from its front that the instance probably has
     */
    public void chosen(String role, String why, int bytes, int known) {
        choices.computeIfAbsent(
                        List.of(role, why),
                        _ -> counter("baton:router_choices", "Chosen instances", "role", role, "why", why))
                .increment();
        promptBytes(role, "all").increment(bytes);
        promptBytes(role, "known").increment(known);
    }

    /** A file that is followed has changed, and was used or could not be. */
    public void followedFile(String file, boolean used) {
        String result = used ? "used" : "refused";
        files.computeIfAbsent(
                        List.of(file, result),
                        _ -> counter(
                                "baton:router_followed_files",
                                "Looks at files that had changed, by whether what was in them is in use",
                                "file",
                                file,
                                "result",
                                result))
                .increment();
    }

    /** A hand-over is begun by a flow that the pair of instances decided. */
    public void flowChosen(String flow) {
        flows.computeIfAbsent(
                        flow,
                        _ -> counter(
                                "baton:router_pair_flows",
                                "Hand-overs by the flow that the pair of instances decided",
                                "flow",
                                flow))
                .increment();
    }

    /**
     * A prompt's way was decided by goals.
     *
     * @param prefill {@code remote} or {@code local}
     */
    public void decidedByGoals(String prefill, String why) {
        goalDecisions
                .computeIfAbsent(
                        List.of(prefill, why),
                        _ -> counter(
                                "baton:router_goal_decisions",
                                "Prompts by where they were computed as the goals for times asked, and why",
                                "prefill",
                                prefill,
                                "why",
                                why))
                .increment();
    }

    private Counter promptBytes(String role, String which) {
        return promptBytes.computeIfAbsent(
                List.of(role, which),
                _ -> counter(
                        "baton:router_prompt_bytes",
                        "Bytes of prompts, all and those that the chosen instance had been sent before",
                        "role",
                        role,
                        "which",
                        which));
    }

    public void countLocalPrefill(LocalPrefillReason reason) {
        Objects.requireNonNull(localPrefills.get(reason)).increment();
    }

    public void registration(RegistrationResult result) {
        Objects.requireNonNull(registrations.get(result)).increment();
    }

    public void addressQuery(AddressQueryResult result) {
        Objects.requireNonNull(addressQueries.get(result)).increment();
    }

    /** @param client name of the request's key; empty if it has none that is known */
    public void client(String client, AdmissionResult result) {
        clients.computeIfAbsent(
                        List.of(client, result.label),
                        _ -> counter(
                                "baton:router_client_requests",
                                "Requests by the name of the client's key, and whether they were let in",
                                "key",
                                client,
                                "result",
                                result.label))
                .increment();
    }

    /** Adds the gauge of a key's requests in flight, unless there is one. */
    public void addClient(String client, IntSupplier inFlight) {
        if (clientGauges.add(client)) {
            Gauge.builder("baton:router_client_requests_running", inFlight::getAsInt)
                    .description("Requests in flight by the name of the client's key")
                    .tag("key", client)
                    .register(registry);
        }
    }

    /** A leg goes to another instance of a role that was added. */
    public void retried(String role) {
        Objects.requireNonNull(retries.get(role)).increment();
    }

    /** All metrics in Prometheus' text format. */
    public String scrape() {
        return registry.scrape();
    }

    @Override
    public void close() {
        registry.close();
    }

    private ClientTimes clientTimes(String prefill) {
        return new ClientTimes(
                timer(
                        "baton:router_time_to_first_token",
                        "From a completion to the first byte of its answer, by where its prompt was computed",
                        "prefill",
                        prefill),
                timer(
                        "baton:router_inter_token_latency",
                        "Between two events of a stream to the client, by where the prompt was computed",
                        "prefill",
                        prefill));
    }

    private Timer timer(String name, String description, String... tags) {
        return Timer.builder(name)
                .description(description)
                .tags(tags)
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
