package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * What {@link HandoverBench} measured.
 *
 * @param leftOut models that have too few positions for all of the prompts, and how many
 */
public record HandoverReport(List<ModelReport> models, List<String> leftOut) {
    /** The parts of a hand-over in their order, where decode was asked with prefill's answer. */
    static final List<String> PHASES =
            List.of("seal", "answer", "pass on", "queue", "handshake", "blocks", "seals", "check", "start");

    /** The same where both were asked at once: {@code push} is what the last layer took, and the word that it is there. */
    static final List<String> AT_ONCE_PHASES = List.of("seal", "push", "seals", "check", "start");

    /**
     * One way to hand over.
     *
     * @param atOnce whether decode was asked when prefill was, and not with prefill's answer
     * @param firstHandshake seconds of the first contact
     */
    public record ModelReport(String name, String connector, boolean atOnce, double firstHandshake, List<Size> sizes) {
        List<String> phases() {
            return atOnce ? AT_ONCE_PHASES : PHASES;
        }

        /** The order of the legs, in words. */
        public String legs() {
            return atOnce ? "both legs at once" : "one leg after the other";
        }
    }

    /** @param alone the transfer while no engine was at work */
    public record Size(int tokens, long bytes, List<Handover> handovers, Timing alone) {
        /** The median of a span over all hand-overs. */
        public double median(ToDoubleFunction<Handover> of) {
            return Timing.median(handovers.stream().map(of::applyAsDouble).toList());
        }

        public double best(ToDoubleFunction<Handover> of) {
            return handovers.stream().mapToDouble(of).min().orElseThrow();
        }

        /** Seconds of the transfer alone. */
        public double transfer(boolean best) {
            return best ? alone.best() : alone.median();
        }

        /** How many times the transfer a hand-over takes, median to median or best to best. */
        public double ratio(boolean best) {
            return (best ? best(Handover::seconds) : median(Handover::seconds)) / transfer(best);
        }
    }

    /** @param spans seconds by what was done */
    public record Handover(Map<String, Double> spans) {
        /** Seconds of a span. */
        public double span(String name) {
            if (name.equals("push")) {
                return Math.max(0, seconds() - span("seal") - span("seals") - span("check") - span("start"));
            }
            Double seconds = spans.get(name);
            if (seconds == null) {
                throw new IllegalArgumentException("name=%s was not recorded, only %s".formatted(name, spans.keySet()));
            }
            return seconds;
        }

        /** From the end of prefill's last forward pass to decode's first step. */
        public double seconds() {
            // With both legs at once, decode was submitted this long before prefill's answer.
            double seconds = span("seal") + span("answer") + span("pass on") + span("to first step");
            // Prefill's thread may be descheduled before it reports that the checksums are made; decode can read them
            // earlier.
            return Math.max(seconds, span("seals") + span("check") + span("start"));
        }
    }

    public void print(PrintWriter out) {
        out.println(
                "Handing prompts over: from prefill's last forward pass to decode's first step; milliseconds, median (best)");
        for (ModelReport model : models) {
            out.printf(
                    Locale.ROOT,
                    "%n%s, %s, %s; first contact %.1f ms%n",
                    model.name(),
                    model.connector(),
                    model.legs(),
                    model.firstHandshake() * 1e3);
            for (Size size : model.sizes()) {
                out.printf(
                        Locale.ROOT,
                        "%n%,d tokens, %.1f MiB, %d times%n",
                        size.tokens(),
                        size.bytes() / 1048576.0,
                        size.handovers().size());
                line(out, "hand-over", size.median(Handover::seconds), size.best(Handover::seconds));
                line(out, "transfer alone", size.transfer(false), size.transfer(true));
                out.printf(Locale.ROOT, "  %-16s %8.2f (%.2f)%n", "ratio", size.ratio(false), size.ratio(true));
                for (String phase : model.phases()) {
                    line(out, "  " + phase, size.median(each -> each.span(phase)), size.best(each -> each.span(phase)));
                }
                if (!model.atOnce()) {
                    line(
                            out,
                            "(transfer within)",
                            size.median(each -> each.span("transfer")),
                            size.best(each -> each.span("transfer")));
                }
            }
        }
        if (!leftOut.isEmpty()) {
            out.printf("%nleft out: %s%n", String.join(", ", leftOut));
        }
        out.flush();
    }

    private static void line(PrintWriter out, String name, double median, double best) {
        out.printf(Locale.ROOT, "  %-16s %8.3f (%.3f)%n", name, median * 1e3, best * 1e3);
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        leftOut.forEach(root.putArray("left_out")::add);
        ArrayNode all = root.putArray("models");
        for (ModelReport model : models) {
            ObjectNode node = all.addObject()
                    .put("model", model.name())
                    .put("connector", model.connector())
                    .put("legs", model.legs())
                    .put("first_handshake_seconds", model.firstHandshake());
            ArrayNode sizes = node.putArray("sizes");
            for (Size size : model.sizes()) {
                ObjectNode each = sizes.addObject()
                        .put("tokens", size.tokens())
                        .put("bytes", size.bytes())
                        .put("seconds", size.median(Handover::seconds))
                        .put("best_seconds", size.best(Handover::seconds))
                        .put("transfer_seconds", size.transfer(false))
                        .put("best_transfer_seconds", size.transfer(true));
                ObjectNode phases = each.putObject("phases");
                model.phases().forEach(phase -> phases.put(phase, size.median(handover -> handover.span(phase))));
            }
        }
        return root;
    }
}
