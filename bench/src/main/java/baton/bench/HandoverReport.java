package baton.bench;

import baton.bench.TransferReport.Rate;
import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** What {@link HandoverBench} measured. */
public record HandoverReport(List<ModelReport> models) {
    /** The parts of a hand-over in their order; all but the answer and the way to the decode instance are in its time to the first step. */
    static final List<String> PHASES =
            List.of("answer", "pass on", "queue", "handshake", "blocks", "seals", "check", "start");

    /** @param firstHandshake seconds of the first contact */
    public record ModelReport(String name, double firstHandshake, List<Size> sizes) {}

    /** @param alone the transfer without the engines, if it was measured */
    public record Size(int tokens, long bytes, List<Handover> handovers, Optional<Rate> alone) {
        /** The median of something in all hand-overs. */
        public double median(ToDoubleFunction<Handover> of) {
            return Timing.median(handovers.stream().map(of::applyAsDouble).toList());
        }

        public double best(ToDoubleFunction<Handover> of) {
            return handovers.stream().mapToDouble(of).min().orElseThrow();
        }

        /** Seconds of the transfer: alone if that was measured, else within the hand-overs. */
        public double transfer(boolean best) {
            return alone.map(rate -> best ? rate.timing().best() : rate.timing().median())
                    .orElseGet(
                            () -> best ? best(each -> each.span("transfer")) : median(each -> each.span("transfer")));
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
            Double seconds = spans.get(name);
            if (seconds == null) {
                throw new IllegalArgumentException("name=%s was not recorded, only %s".formatted(name, spans.keySet()));
            }
            return seconds;
        }

        /** From prefill's last token to decode's first step. */
        public double seconds() {
            return span("answer") + span("pass on") + span("to first step");
        }
    }

    public void print(PrintWriter out) {
        out.println(
                "Handing prompts over: from prefill's last token to decode's first step; milliseconds, median (best)");
        for (ModelReport model : models) {
            out.printf(Locale.ROOT, "%n%s; first contact %.1f ms%n", model.name(), model.firstHandshake() * 1e3);
            for (Size size : model.sizes()) {
                out.printf(
                        Locale.ROOT,
                        "%n%,d tokens, %.1f MiB, %d times%n",
                        size.tokens(),
                        size.bytes() / 1048576.0,
                        size.handovers().size());
                line(out, "hand-over", size.median(Handover::seconds), size.best(Handover::seconds));
                line(
                        out,
                        size.alone().isPresent() ? "transfer alone" : "transfer within",
                        size.transfer(false),
                        size.transfer(true));
                out.printf(Locale.ROOT, "  %-16s %8.2f (%.2f)%n", "ratio", size.ratio(false), size.ratio(true));
                for (String phase : PHASES) {
                    line(out, "  " + phase, size.median(each -> each.span(phase)), size.best(each -> each.span(phase)));
                }
                line(
                        out,
                        "(transfer within)",
                        size.median(each -> each.span("transfer")),
                        size.best(each -> each.span("transfer")));
                line(
                        out,
                        "(sealing before)",
                        size.median(each -> each.span("seal")),
                        size.best(each -> each.span("seal")));
            }
        }
        out.flush();
    }

    private static void line(PrintWriter out, String name, double median, double best) {
        out.printf(Locale.ROOT, "  %-16s %8.3f (%.3f)%n", name, median * 1e3, best * 1e3);
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        ArrayNode all = root.putArray("models");
        for (ModelReport model : models) {
            ObjectNode node =
                    all.addObject().put("model", model.name()).put("first_handshake_seconds", model.firstHandshake());
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
                PHASES.forEach(phase -> phases.put(phase, size.median(handover -> handover.span(phase))));
            }
        }
        return root;
    }
}
