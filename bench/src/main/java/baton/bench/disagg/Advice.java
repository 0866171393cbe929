package baton.bench.disagg;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;

/**
 * The result of the measurements of one load.
 *
 * @param promptTokens of its long prompts
 * @param rate of them
 * @param colocated the best colocated setup: with the least product of p99 inter-token latency and median time to first token
 * @param disaggregated beside it
 */
public record Advice(int promptTokens, double rate, Cell colocated, Cell disaggregated) {
    /** A gain that is worth a second instance. */
    private static final double WORTH = 0.8;

    /** The factor by which a prompt may take longer for it. */
    private static final double BEARABLE = 1.2;

    /** Whether to disaggregate. */
    public enum Verdict {
        YES,
        TRADE,
        NO
    }

    /** One for each load that has both. */
    static List<Advice> of(List<Cell> cells) {
        List<Advice> all = new ArrayList<>();
        for (Cell each : cells) {
            if (!each.setup().disaggregated()) {
                continue;
            }
            Optional<Cell> best = cells.stream()
                    .filter(other -> !other.setup().disaggregated()
                            && other.promptTokens() == each.promptTokens()
                            && other.rate() == each.rate())
                    .min(Comparator.comparingDouble(Cell::score));
            best.ifPresent(other -> all.add(new Advice(each.promptTokens(), each.rate(), other, each)));
        }
        return all;
    }

    /** Disaggregated divided by colocated. */
    public double itl() {
        return disaggregated.itl().p99() / colocated.itl().p99();
    }

    public double longTtft() {
        return disaggregated.longTtft().median() / colocated.longTtft().median();
    }

    public double shortTtft() {
        return disaggregated.shortTtft().median() / colocated.shortTtft().median();
    }

    /** The verdict by p99 inter-token latency and median time to the first token of long prompts. */
    public Verdict verdict() {
        if (disaggregated.failed() > 0 || itl() > WORTH) {
            return Verdict.NO;
        }
        return longTtft() <= BEARABLE ? Verdict.YES : Verdict.TRADE;
    }

    /** One sentence for all loads. */
    static String sentence(List<Advice> all) {
        if (all.isEmpty()) {
            return "Nothing to compare: no load was measured both ways.";
        }
        List<Advice> yes = of(all, Verdict.YES);
        List<Advice> trade = of(all, Verdict.TRADE);
        List<Advice> no = of(all, Verdict.NO);
        if (yes.size() == all.size()) {
            return "Disaggregate for this load on this machine: " + ratios(yes) + ".";
        }
        if (no.size() == all.size()) {
            return "Do not disaggregate for this load on this machine: " + ratios(no) + "; serve it colocated with "
                    + chunks(no) + ".";
        }
        List<String> parts = new ArrayList<>();
        if (!yes.isEmpty()) {
            parts.add("disaggregate for " + loads(yes) + " (" + ratios(yes) + ")");
        }
        if (!trade.isEmpty()) {
            parts.add("for " + loads(trade) + " only if even answers matter more than quick first tokens ("
                    + ratios(trade) + ")");
        }
        if (!no.isEmpty()) {
            parts.add("do not for " + loads(no) + " (" + ratios(no) + ")");
        }
        String first = yes.isEmpty() && no.isEmpty() ? "disaggregate " : "";
        return "On this machine, " + first + String.join(", ", parts) + ".";
    }

    private static List<Advice> of(List<Advice> all, Verdict verdict) {
        return all.stream().filter(each -> each.verdict() == verdict).toList();
    }

    private static String loads(List<Advice> some) {
        return some.stream()
                .map(each -> String.format(
                        Locale.ROOT, "prompts of %,d tokens at %.2f a second", each.promptTokens, each.rate))
                .reduce((a, b) -> a + " and " + b)
                .orElse("nothing");
    }

    private static String chunks(List<Advice> some) {
        return some.stream()
                .map(each -> each.colocated.setup().label().replaceFirst("^colocated,? ?", ""))
                .map(each -> each.isEmpty() ? "its chunks" : each)
                .distinct()
                .reduce((a, b) -> a + " or " + b)
                .orElse("any");
    }

    private static String ratios(List<Advice> some) {
        return "p99 inter-token latency is "
                + range(some.stream().mapToDouble(Advice::itl).toArray())
                + " of the best colocated setup's, time to first token "
                + range(some.stream().mapToDouble(Advice::longTtft).toArray()) + " of it for long prompts and "
                + range(some.stream().mapToDouble(Advice::shortTtft).toArray()) + " for short ones";
    }

    private static String range(double[] values) {
        double low = Double.MAX_VALUE;
        double high = 0;
        for (double each : values) {
            low = Math.min(low, each);
            high = Math.max(high, each);
        }
        String from = String.format(Locale.ROOT, "%.2f", low);
        String to = String.format(Locale.ROOT, "%.2f", high);
        return from.equals(to) ? from : from + " to " + to;
    }
}
