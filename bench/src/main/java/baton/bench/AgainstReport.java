package baton.bench;

import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link AgainstBench}.
 *
 * @param url of the other server
 * @param model its name there
 * @param prompts form of the prompts: token ids, or text
 * @param leftOut cases that were not measured, or differently, with the reason, a line each
 */
public record AgainstReport(String url, String model, String prompts, List<Case> cases, List<String> leftOut) {
    /**
     * The same requests to both.
     *
     * @param what "prefill" or "decode"
     * @param count tokens of a prompt, or requests that decode at the same time
     */
    public record Case(String what, int count, Side baton, Side other) {
        /** How many times the other server's tokens/s Baton has, by medians. */
        public double ratio() {
            return baton.tokensPerSecond() / other.tokensPerSecond();
        }
    }

    /**
     * @param timing from a prompt to its first token, or of a step
     * @param tokens of a prompt, as that server counts them, or of a step
     */
    public record Side(Timing timing, int tokens) {
        /** At the median. */
        public double tokensPerSecond() {
            return tokens / timing.median();
        }
    }

    void print(PrintWriter out) {
        out.println();
        out.printf(
                "Against %s (%s), requests to Baton's server and to that one in turns, prompts as %s; medians%n",
                url, model, prompts);
        out.printf("  %-24s %10s %10s %10s %10s %8s %8s%n", "", "Baton", "", "other", "", "", "");
        out.printf("  %-24s %10s %10s %10s %10s %8s %8s%n", "", "tokens/s", "ms", "tokens/s", "ms", "ratio", "times");
        for (Case each : cases) {
            out.printf(
                    Locale.ROOT,
                    "  %-24s %10.1f %10.2f %10.1f %10.2f %7.2fx %8d%n",
                    (each.what.equals("decode") ? "decode batch " : each.what + " ") + each.count,
                    each.baton.tokensPerSecond(),
                    each.baton.timing.median() * 1e3,
                    each.other.tokensPerSecond(),
                    each.other.timing.median() * 1e3,
                    each.ratio(),
                    each.baton.timing.repetitions());
        }
        out.println(
                "Prefill: from the request to the first token, of prompts that are new. Decode: from the last request's first");
        out.println("token to the first request's last, while all of them decode; ms is the time of a step.");
    }

    void writeTo(ObjectNode node) {
        node.put("url", url).put("model", model).put("prompts", prompts);
        ArrayNode caseNodes = node.putArray("cases");
        for (Case each : cases) {
            ObjectNode caseNode = caseNodes.addObject().put("case", each.what).put("count", each.count);
            writeTo(caseNode.putObject("baton"), each.baton);
            writeTo(caseNode.putObject("other"), each.other);
            caseNode.put("ratio", each.ratio());
        }
    }

    private static void writeTo(ObjectNode node, Side side) {
        EngineReport.timing(node, side.timing)
                .put("tokens", side.tokens)
                .put("tokens_per_second", side.tokensPerSecond());
    }
}
