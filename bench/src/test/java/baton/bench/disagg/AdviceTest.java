package baton.bench.disagg;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.bench.disagg.Advice.Verdict;
import baton.bench.disagg.Cell.Quantiles;
import baton.bench.disagg.DisaggReport.OtherLoad;
import baton.bench.frame.Machine;
import java.util.List;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class AdviceTest {
    private static Cell cell(Setup setup, double rate, double itl, double longTtft) {
        return new Cell(
                setup,
                2000,
                rate,
                0.5,
                new Quantiles(itl / 4, itl / 2, itl),
                new Quantiles(longTtft, longTtft, longTtft),
                new Quantiles(0.05, 0.05, 0.05),
                300,
                40,
                0);
    }

    private static DisaggReport report(double load, List<Cell> cells) {
        return new DisaggReport(
                Machine.here(),
                "m",
                "cores [0] and [1]",
                DisaggBench.Plan.SHORT,
                new OtherLoad(load, 2),
                cells,
                List.of("something: <no time>"),
                17);
    }

    @Test
    void theBestColocatedSetupIsTheOneBesideWhichDisaggregationStands() {
        List<Advice> advice = Advice.of(List.of(
                cell(Setup.DISAGGREGATED, 1, 0.02, 1.1),
                // Neither the evenest nor the quickest alone.
                cell(Setup.colocated(64), 1, 0.05, 9),
                cell(Setup.colocated(512), 1, 0.1, 1),
                cell(Setup.colocated(2048), 1, 0.9, 0.9)));
        assertThat(advice).singleElement().satisfies(each -> {
            assertThat(each.colocated().setup().budget()).hasValue(512);
            assertThat(each.itl()).isCloseTo(0.2, within(1e-12));
            assertThat(each.longTtft()).isCloseTo(1.1, within(1e-12));
            assertThat(each.shortTtft()).isEqualTo(1);
            assertThat(each.verdict()).isEqualTo(Verdict.YES);
        });
        assertThat(Advice.sentence(advice))
                .isEqualTo(
                        "Disaggregate for this load on this machine: p99 inter-token latency is 0.20 of the best"
                                + " colocated setup's, time to first token 1.10 of it for long prompts and 1.00 for short ones.");
    }

    @Test
    void whereItDoesNotPayTheSentenceSaysSo() {
        List<Cell> cells = List.of(
                cell(Setup.DISAGGREGATED, 1, 0.2, 2),
                cell(Setup.colocated(512), 1, 0.1, 1),
                cell(Setup.colocated(1024), 1, 0.4, 1));
        assertThat(report(0, cells).sentence())
                .startsWith("Do not disaggregate")
                .endsWith("serve it colocated with chunks of 512.");
        assertThat(report(7, cells).sentence())
                .endsWith("(Measured with other work on the machine: load average 7.0 of 2.)");
    }

    @Test
    void loadsThatDifferAreSaidEach() {
        List<Cell> cells = List.of(
                cell(Setup.DISAGGREGATED, 1, 0.01, 1),
                cell(Setup.DISAGGREGATED, 2, 0.01, 3),
                cell(Setup.DISAGGREGATED, 3, 0.1, 1),
                cell(Setup.COLOCATED, 1, 0.1, 1),
                cell(Setup.COLOCATED, 2, 0.1, 1),
                cell(Setup.COLOCATED, 3, 0.1, 1));
        assertThat(Advice.of(cells).stream().map(Advice::verdict))
                .containsExactly(Verdict.YES, Verdict.TRADE, Verdict.NO);
        assertThat(Advice.sentence(Advice.of(cells)))
                .startsWith("On this machine, disaggregate for prompts of 2,000 tokens at 1.00 a second (")
                .contains(
                        "for prompts of 2,000 tokens at 2.00 a second only if",
                        "do not for prompts of 2,000 tokens at 3.00 a second (");
        assertThat(Advice.sentence(List.of())).startsWith("Nothing to compare");
    }

    @Test
    void tablePageAndJsonHaveEverySetup() {
        DisaggReport report =
                report(0, List.of(cell(Setup.DISAGGREGATED, 1, 0.02, 1.1), cell(Setup.colocated(512), 1, 0.1, 1)));
        assertThat(report.markdown())
                .contains(
                        "| disaggregated (1P1D) | 2,000 | 1.00 | 50 % | 5.0 | 20.0 | 1,100 |",
                        "| colocated, chunks of 512 |",
                        "ITL p99 0.20, TTFT 1.10 long and 1.00 short",
                        "left out: something");
        String page = DisaggPage.html(report);
        assertThat(page).contains("Disaggregate for this load", "1P1D", "chunks of 512", "something: &lt;no time&gt;");
        assertThat(page.split("<svg ", -1)).hasSize(5);
        assertThat(page).doesNotContain("NaN", "<script");
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        report.writeTo(json);
        assertThat(json.at("/cells/1/max_num_batched_tokens").asInt()).isEqualTo(512);
        assertThat(json.at("/against_best_colocated/0/verdict").asString()).isEqualTo("yes");
    }
}
