package baton.router.metrics;

import baton.router.metrics.RouterMetrics.AddressQueryResult;
import baton.router.metrics.RouterMetrics.Carried;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.metrics.RouterMetrics.PrefillWay;
import baton.router.metrics.RouterMetrics.RegistrationResult;
import java.util.List;

/** The router's metrics: name, description and names of labels. {@link RouterMetrics} records all of a kind in one way. */
public enum RouterMetric {
    REQUESTS(Kind.COUNTER, "baton:router_requests", "Requests by how they ended", Outcome.values(), "outcome"),
    REQUESTS_RUNNING(Kind.GAUGE, "baton:router_requests_running", "Requests in flight"),
    CLIENT_REQUESTS(
            Kind.COUNTER,
            "baton:router_client_requests",
            "Requests by the name of the client's key, and whether they were let in",
            "key",
            "result"),
    CLIENT_REQUESTS_RUNNING(
            Kind.GAUGE,
            "baton:router_client_requests_running",
            "Requests in flight by the name of the client's key",
            "key"),
    CLIENT_ADDRESSES_REFUSED(
            Kind.COUNTER,
            "baton:router_client_addresses_refused",
            "Requests refused as their kv_transfer_params or media would lead instances to addresses",
            RouterMetrics.NO_LABEL),
    CLIENT_DISCONNECTS(
            Kind.COUNTER,
            "baton:router_client_disconnects",
            "Clients that left before their answer ended",
            RouterMetrics.NO_LABEL),

    INSTANCES(Kind.GAUGE, "baton:router_instances", "Configured and registered instances", "role"),
    INSTANCES_UP(Kind.GAUGE, "baton:router_instances_up", "Healthy instances", "role"),
    INSTANCES_BY_STATE(
            Kind.GAUGE,
            "baton:router_instances_by_state",
            "Instances by whether they get requests, and why not",
            "role",
            "state"),
    ROLE_CHANGES(
            Kind.COUNTER,
            "baton:router_role_changes",
            "Changes of instances' roles, by the new role and how they ended",
            "role",
            "result"),
    ROLE_DECISIONS(
            Kind.COUNTER,
            "baton:router_role_decisions",
            "Windows of time by the role that the role controller wanted an instance to take, or stay",
            "decision"),
    PREFIXES_TAKEN_OVER(
            Kind.COUNTER,
            "baton:router_prefixes_taken_over",
            "Hot prefixes of instances that leave, for each instance that stays, by how it got them",
            "result"),
    PROMPTS_SPLIT(
            Kind.COUNTER,
            "baton:router_prompts_split",
            "Prompts of which the prefill instance was to compute a part and the decode instance the rest",
            RouterMetrics.NO_LABEL),
    REGISTRATIONS(
            Kind.COUNTER,
            "baton:router_registrations",
            "Messages of instances that they are there, and their absence",
            RegistrationResult.values(),
            "result"),
    ASKED_AHEAD(
            Kind.COUNTER,
            "baton:router_asked_ahead",
            "Questions to prefill instances where their connectors are",
            AddressQueryResult.values(),
            "result"),
    FOLLOWED_FILES(
            Kind.COUNTER,
            "baton:router_followed_files",
            "Looks at files that had changed, by whether their content is in use",
            "file",
            "result"),

    CHOICES(Kind.COUNTER, "baton:router_choices", "Chosen instances", "role", "why"),
    RETRIES(Kind.COUNTER, "baton:router_retries", "Legs sent to another instance", "role"),
    INSTANCE_WAITS(Kind.COUNTER, "baton:router_instance_waits", "Waits of requests that lost an instance", "role"),
    PROMPT_BYTES(
            Kind.COUNTER,
            "baton:router_prompt_bytes",
            "Bytes of prompts, all and those that the chosen instance had been sent before",
            "role",
            "which"),
    PROMPT_TOKENS_KNOWN(
            Kind.COUNTER, "baton:router_prompt_tokens_known", "Prompts by how their tokens became known", "result"),
    PROMPTS_DIFFER(
            Kind.COUNTER,
            "baton:router_prompts_differ",
            "Prompts that have other numbers of tokens at the prefill and the decode instance",
            RouterMetrics.NO_LABEL),
    LOCAL_PREFILLS(
            Kind.COUNTER,
            "baton:router_local_prefills",
            "Prompts left to a decode instance",
            LocalPrefillReason.values(),
            "reason"),
    GOAL_DECISIONS(
            Kind.COUNTER,
            "baton:router_goal_decisions",
            "Prompts by where they were computed as the goals for times asked, and why",
            "prefill",
            "why"),
    STREAMS_CONTINUED(
            Kind.COUNTER,
            "baton:router_streams_continued",
            "Answers with a decode instance that broke off, by the reason and by whether another instance continued them",
            "reason",
            "outcome"),
    STREAM_PAUSE(
            Kind.TIMER,
            "baton:router_stream_pause",
            "From a decode instance's failure to the first event of the instance that continues its answer",
            RouterMetrics.NO_LABEL),
    HANDOFFS(
            Kind.COUNTER,
            "baton:router_handoffs",
            "Hand-offs, by whether prefill's kv_transfer_params went to decode",
            Carried.values(),
            "params"),
    PAIR_FLOWS(
            Kind.COUNTER,
            "baton:router_pair_flows",
            "Hand-overs by the flow that the pair of instances decided",
            "flow"),
    SHADOW_REQUESTS(
            Kind.COUNTER,
            "baton:router_shadow_requests",
            "Requests that were computed a second time without a hand-over, by how the answers compare",
            "result"),
    SHADOW_TIME(
            Kind.TIMER,
            "baton:router_shadow_time",
            "Whole answers of requests that were computed twice, by whether keys and values were handed over",
            "way"),

    KV_EVENT_PUBLISHERS(Kind.GAUGE, "baton:router_kv_event_publishers", "Publishers of KV events that are followed"),
    KV_EVENT_BLOCKS(Kind.GAUGE, "baton:router_kv_event_blocks", "Blocks that instances hold, by their KV events"),
    KV_EVENT_BATCHES(Kind.COUNTER, "baton:router_kv_event_batches", "Batches of KV events received"),
    KV_EVENT_REPLAYED_BATCHES(
            Kind.COUNTER,
            "baton:router_kv_event_replayed_batches",
            "Batches of KV events that were missed and asked for"),
    KV_EVENT_LOSSES(
            Kind.COUNTER,
            "baton:router_kv_event_losses",
            "Times that all that was known of a publisher's blocks became void"),
    KV_EVENT_MALFORMED_BATCHES(
            Kind.COUNTER, "baton:router_kv_event_malformed_batches", "Batches of KV events that could not be read"),
    TRACE_SPANS(Kind.COUNTER, "baton:trace_spans", "Spans of requests, by whether a collector has them", "result"),

    REQUEST(Kind.TIMER, "baton:router_request", "From a request to the end of its answer", RouterMetrics.NO_LABEL),
    FIRST_BYTE(
            Kind.TIMER,
            "baton:router_first_byte",
            "From a request to the first byte of its answer",
            RouterMetrics.NO_LABEL),
    PREFILL(
            Kind.TIMER,
            "baton:router_prefill",
            "Prefill leg, from sending to the whole answer",
            RouterMetrics.NO_LABEL),
    DECODE(Kind.TIMER, "baton:router_decode", "Decode leg, from sending to the whole answer", RouterMetrics.NO_LABEL),
    DECODE_FIRST_BYTE(
            Kind.TIMER,
            "baton:router_decode_first_byte",
            "Decode leg, from sending to its first byte",
            RouterMetrics.NO_LABEL),
    TIME_TO_FIRST_TOKEN(
            Kind.TIMER,
            "baton:router_time_to_first_token",
            "From a completion to the first byte of its answer, by where its prompt was computed",
            PrefillWay.values(),
            "prefill"),
    INTER_TOKEN_LATENCY(
            Kind.TIMER,
            "baton:router_inter_token_latency",
            "Between two events of a stream to the client, by where the prompt was computed",
            PrefillWay.values(),
            "prefill");

    enum Kind {
        COUNTER,
        GAUGE,
        TIMER
    }

    final Kind kind;
    final String title;
    final String description;

    @SuppressWarnings("ImmutableEnumChecker") // Of List.of.
    final List<String> labels;

    /** Values of the only label that are shown before the first one is recorded. */
    @SuppressWarnings("ImmutableEnumChecker") // Of List.of.
    final List<Object> shown;

    RouterMetric(Kind kind, String title, String description, String... labels) {
        this(kind, title, description, new Object[0], labels);
    }

    RouterMetric(Kind kind, String title, String description, Object[] shown, String... labels) {
        this.kind = kind;
        this.title = title;
        this.description = description;
        this.shown = List.of(shown);
        this.labels = List.of(labels);
    }
}
