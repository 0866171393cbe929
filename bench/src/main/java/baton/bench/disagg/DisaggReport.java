package baton.bench.disagg;

import baton.bench.disagg.Cell.Quantiles;
import baton.bench.frame.Column;
import baton.bench.frame.Machine;
import baton.bench.frame.Table;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Locale;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The results of the measurement.
 *
 * @param model its name
 * @param where the instances' connector and cores, or the servers' URLs
 * @param load of other processes
 * @param leftOut the omitted measurements, with the reasons
 * @param seconds that all of it took
 */
public record DisaggReport(
        Machine machine,
        String model,
        String where,
        DisaggBench.Plan plan,
        OtherLoad load,
        List<Cell> cells,
        List<String> leftOut,
        double seconds) {
    /** The columns of cells as JSON. */
    private static final List<Column> COLUMNS = List.of(
            Column.of("setup", "{setup}"),
            Column.of("prompt", "{prompt_tokens|%,d}"),
            Column.of("a second", "{rate|%.2f}"),
            Column.of("busy", "{busy|%.0f|100} %"),
            Column.of("ITL p50", "{itl_ms/median|%,.1f}"),
            Column.of("ITL p99", "{itl_ms/p99|%,.1f}"),
            Column.of("TTFT long p50", "{long_ttft_ms/median|%,.0f}"),
            Column.of("p90", "{long_ttft_ms/p90|%,.0f}"),
            Column.of("TTFT short p50", "{short_ttft_ms/median|%,.1f}"),
            Column.of("p90", "{short_ttft_ms/p90|%,.1f}"),
            Column.of("tokens/s", "{tokens_per_second|%,.0f}"),
            Column.of("failed", "{failed} of {requests}"));

    /**
     * Load averages of the last minute when the measurement began, negative if they are not known: processes that compete for processors
     * change both sides.
     */
    public record OtherLoad(double average, int processors) {
        static OtherLoad now() {
            return new OtherLoad(
                    ManagementFactory.getOperatingSystemMXBean().getSystemLoadAverage(),
                    Runtime.getRuntime().availableProcessors());
        }

        boolean isMuch() {
            return average > processors / 2.0;
        }
    }

    public DisaggReport {
        cells = List.copyOf(cells);
        leftOut = List.copyOf(leftOut);
    }

    /** The advice for each load that was measured both ways. */
    public List<Advice> advice() {
        return Advice.of(cells);
    }

    /** One sentence. */
    public String sentence() {
        String sentence = Advice.sentence(advice());
        return load.isMuch()
                ? sentence
                        + String.format(
                                Locale.ROOT,
                                " (Measured with other work on the machine: load average %.1f of %d.)",
                                load.average,
                                load.processors)
                : sentence;
    }

    String about() {
        return String.format(
                Locale.ROOT,
                "%s on %s, %d processors; %s; %d short requests of %d tokens under way, %d tokens each",
                model,
                machine.processor(),
                machine.processors(),
                where,
                plan.together(),
                MixedLoad.SHORT_PROMPT,
                MixedLoad.SHORT_ANSWER);
    }

    /** All cells; times in ms. */
    Table table() {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        writeTo(json);
        return Table.of(COLUMNS, json.path("cells").valueStream());
    }

    /** Table and sentence. */
    public String markdown() {
        StringBuilder out = new StringBuilder(about())
                .append("; ms\n\n")
                .append(table().markdown())
                .append('\n');
        for (Advice each : advice()) {
            out.append(said(each)).append('\n');
        }
        leftOut.forEach(each -> out.append("left out: ").append(each).append('\n'));
        out.append(String.format(Locale.ROOT, "%n%s%n(%.0f s)%n", sentence(), seconds));
        return out.toString();
    }

    static String said(Advice each) {
        return String.format(
                Locale.ROOT,
                "prompts of %,d tokens at %.2f a second: disaggregated against %s: ITL p99 %.2f, TTFT %.2f long and %.2f short",
                each.promptTokens(),
                each.rate(),
                each.colocated().setup().label(),
                each.itl(),
                each.longTtft(),
                each.shortTtft());
    }

    /** Writes all figures; times in ms. */
    public void writeTo(ObjectNode json) {
        machine.writeTo(json.putObject("machine"));
        json.put("model", model).put("where", where).put("seconds", seconds);
        json.put("load_average_before", load.average);
        json.put("advice", sentence());
        ArrayNode all = json.putArray("cells");
        for (Cell each : cells) {
            ObjectNode cell = all.addObject();
            cell.put("setup", each.setup().label());
            cell.put("disaggregated", each.setup().disaggregated());
            each.setup().budget().ifPresent(budget -> cell.put("max_num_batched_tokens", budget));
            cell.put("prompt_tokens", each.promptTokens());
            cell.put("rate", each.rate()).put("busy", each.busy());
            quantiles(cell.putObject("itl_ms"), each.itl());
            quantiles(cell.putObject("long_ttft_ms"), each.longTtft());
            quantiles(cell.putObject("short_ttft_ms"), each.shortTtft());
            cell.put("tokens_per_second", each.tokensPerSecond());
            cell.put("requests", each.requests()).put("failed", each.failed());
        }
        ArrayNode ratios = json.putArray("against_best_colocated");
        for (Advice each : advice()) {
            ratios.addObject()
                    .put("prompt_tokens", each.promptTokens())
                    .put("rate", each.rate())
                    .put("colocated", each.colocated().setup().label())
                    .put("itl_p99", each.itl())
                    .put("long_ttft_median", each.longTtft())
                    .put("short_ttft_median", each.shortTtft())
                    .put("verdict", each.verdict().name().toLowerCase(Locale.ROOT));
        }
        ArrayNode out = json.putArray("left_out");
        leftOut.forEach(out::add);
    }

    private static void quantiles(ObjectNode json, Quantiles figures) {
        json.put("median", figures.median() * 1e3);
        json.put("p90", figures.p90() * 1e3);
        json.put("p99", figures.p99() * 1e3);
    }

    /** Setups in the order in which they were measured. */
    List<Setup> setups() {
        return cells.stream().map(Cell::setup).distinct().toList();
    }
}
