package baton.router.trace;

import baton.router.trace.RequestTrace.LegTrace;
import baton.router.trace.RequestTrace.Snapshot;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Explains a request's trace, in words and as JSON. */
public final class Explanation {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private Explanation() {}

    /** The request in a few fields, without its steps. */
    public static ObjectNode summary(Snapshot trace) {
        ObjectNode json = MAPPER.createObjectNode()
                .put("id", trace.head().id())
                .put("trace_id", trace.head().context().traceId())
                .put("path", trace.head().path())
                .put("age_ms", millis(trace.age()))
                .put("state", trace.outcome().isPresent() ? "ended" : "running");
        trace.outcome()
                .ifPresent(outcome -> json.put("outcome", outcome.name())
                        .put("status", outcome.status())
                        .put("total_ms", millis(outcome.nanos())));
        trace.prefill().ifPresent(leg -> json.set("prefill", leg(leg)));
        trace.decode().ifPresent(leg -> json.set("decode", leg(leg)));
        trace.localPrefill().ifPresent(reason -> json.put("local_prefill", reason));
        put(json, "ttft_ms", trace.answer().firstByte());
        put(json, "mean_itl_ms", trace.answer().meanGap());
        if (trace.answer().writes() > 1) {
            json.put("max_itl_ms", millis(trace.answer().longestGap()));
        }
        return json.put("events", trace.answer().writes())
                .put("bytes", trace.answer().bytes());
    }

    /** The request with its steps and {@link #text}. */
    public static ObjectNode json(Snapshot trace) {
        ObjectNode json = summary(trace);
        ArrayNode steps = json.putArray("steps");
        trace.steps()
                .forEach(step ->
                        steps.addObject().put("at_ms", millis(step.nanos())).put("what", step.what()));
        return json.put("text", text(trace));
    }

    private static ObjectNode leg(LegTrace leg) {
        ObjectNode json = MAPPER.createObjectNode()
                .put("instance", leg.instance())
                .put("why", leg.why())
                .put("sent_ms", millis(leg.sent()));
        put(json, "ended_ms", leg.ended());
        leg.prompt().ifPresent(tokens -> json.put("prompt_tokens", tokens.all()).put("cached_tokens", tokens.cached()));
        leg.status().ifPresent(status -> json.put("status", status));
        leg.failure().ifPresent(failure -> json.put("failure", failure));
        return json;
    }

    private static void put(ObjectNode json, String name, OptionalLong nanos) {
        nanos.ifPresent(value -> json.put(name, millis(value)));
    }

    private static double millis(long nanos) {
        return Math.round(nanos / 1e3) / 1e3;
    }

    /** Why it went where, and where the time went: a sentence for each. */
    public static String text(Snapshot trace) {
        StringBuilder text = new StringBuilder();
        trace.prefill()
                .ifPresentOrElse(
                        leg -> prefill(text, leg),
                        () -> trace.localPrefill()
                                .ifPresent(reason -> text.append("The decode instance computed the prompt itself: ")
                                        .append(reason)
                                        .append(". ")));
        trace.decode()
                .ifPresent(leg -> text.append(
                        "Decode was sent to %s after %s: %s. ".formatted(leg.instance(), ms(leg.sent()), leg.why())));
        trace.legs().stream()
                .filter(leg ->
                        leg.role().equals(RequestTrace.DECODE) && leg.failure().isPresent())
                .forEach(leg -> text.append("%s broke off after %s: %s. "
                        .formatted(
                                leg.instance(),
                                ms(leg.ended().orElse(0)),
                                leg.failure().orElse(""))));
        trace.answer()
                .firstByte()
                .ifPresent(nanos -> text.append(
                        "The first byte went to the client after %s%s. ".formatted(ms(nanos), share(trace, nanos))));
        if (trace.answer().writes() > 1) {
            text.append("%d pieces followed each other by %s on average, %s at most. "
                    .formatted(
                            trace.answer().writes(),
                            ms(trace.answer().meanGap().orElse(0)),
                            ms(trace.answer().longestGap())));
        }
        trace.outcome()
                .ifPresentOrElse(
                        outcome -> text.append("It ended after %s: %s, HTTP %d."
                                .formatted(ms(outcome.nanos()), outcome.name(), outcome.status())),
                        () -> text.append("It has been running for %s.".formatted(ms(trace.age()))));
        return text.append(" It belongs to the trace ")
                .append(trace.head().context().traceId())
                .append('.')
                .toString();
    }

    private static void prefill(StringBuilder text, LegTrace leg) {
        text.append("Prefill was sent to %s after %s: %s".formatted(leg.instance(), ms(leg.sent()), leg.why()));
        text.append(
                leg.ended().isPresent()
                        ? "; it took %s".formatted(ms(leg.ended().getAsLong() - leg.sent()))
                        : "; it has not answered");
        leg.prompt()
                .ifPresent(tokens -> text.append(", with %d of the prompt's %d tokens from its caches"
                        .formatted(tokens.cached(), tokens.all())));
        text.append(". ");
    }

    /** Which share of the time to the first byte was prefill. */
    private static String share(Snapshot trace, long firstByte) {
        Optional<LegTrace> leg =
                trace.prefill().filter(prefill -> prefill.ended().isPresent());
        if (leg.isEmpty() || firstByte <= 0) {
            return "";
        }
        long prefill =
                Math.min(leg.get().ended().getAsLong(), firstByte) - leg.get().sent();
        return ", %d %% of it in prefill".formatted(Math.round(100.0 * prefill / firstByte));
    }

    private static String ms(long nanos) {
        return String.format(Locale.ROOT, nanos < 10_000_000 ? "%.2f ms" : "%.0f ms", nanos / 1e6);
    }
}
