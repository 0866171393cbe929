package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.HandoverBench;
import baton.bench.HandoverReport;
import baton.bench.PairBench;
import baton.cli.Instances.Instance;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class HandoverBenchTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final Path MODEL =
            Path.of(System.getProperty("user.dir")).resolveSibling("models").resolve("tiny-ledger");

    @Test
    void modelsWithTooFewPositionsAreNamed() {
        HandoverBench bench =
                new HandoverBench(HandoverBench.CONNECTORS, OptionalInt.of(1), List.of(1 << 20), 1, _ -> {});
        assertThatThrownBy(() -> bench.run(List.of(MODEL), true))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(
                        "tokens", "1048576", "tiny-ledger has max_position_embeddings=2048", "llama-1b");
        StringWriter text = new StringWriter();
        new HandoverReport(List.of(), List.of("short has max_position_embeddings=8")).print(new PrintWriter(text));
        assertThat(text.toString()).contains("left out: short has max_position_embeddings=8");
    }

    @Tag("thorough")
    @Test
    void measuresEveryPhaseOfAHandOverBetweenTwoProcesses() throws IOException {
        HandoverReport report = new HandoverBench(
                        HandoverBench.CONNECTORS, OptionalInt.of(1), List.of(16, 160), 2, _ -> {})
                .run(List.of(MODEL), false);

        assertThat(report.models())
                .extracting(each -> each.connector() + ", " + each.legs())
                .containsExactly(
                        "NixlConnector, both legs at once",
                        "NixlConnector, one leg after the other",
                        "NixlPushConnector, both legs at once");
        assertThat(report.models()).allSatisfy(each -> {
            assertThat(each.firstHandshake()).isPositive();
            assertThat(each.sizes()).extracting(HandoverReport.Size::tokens).containsExactly(16, 160);
            assertThat(each.sizes()).allSatisfy(size -> {
                assertThat(size.handovers()).hasSize(2).allSatisfy(handover -> {
                    assertThat(List.of("seal", "queue", "handshake", "start"))
                            .allSatisfy(
                                    phase -> assertThat(handover.span(phase)).isPositive());
                    double load = handover.span("blocks") + handover.span("seals") + handover.span("check");
                    assertThat(load).isPositive().isLessThanOrEqualTo(handover.span("to first step"));
                    if (!each.atOnce()) {
                        assertThat(handover.span("pass on")).isPositive();
                        assertThat(handover.seconds()).isGreaterThan(handover.span("to first step"));
                    }
                });
                assertThat(size.ratio(true))
                        .isEqualTo(size.best(HandoverReport.Handover::seconds) / size.transfer(true));
            });
        });
        StringWriter text = new StringWriter();
        report.print(new PrintWriter(text));
        assertThat(text.toString()).contains("160 tokens", "hand-over", "ratio", "check", "pass on", "push", "at once");
        assertThat(report.toJson().at("/models/1/legs").asString()).isEqualTo("one leg after the other");
        assertThat(report.toJson().at("/models/1/sizes/1/phases/blocks").asDouble())
                .isPositive();
    }

    @Test
    void instancesThatRunAreMeasuredInTurns() throws Exception {
        Instance prefill = INSTANCES.serveBlocks("prefill", "NixlConnector", "kv_producer");
        Instance decode = INSTANCES.serveBlocks("decode", "NixlConnector", "kv_consumer");
        String urls = prefill.url() + "," + decode.url();
        PairBench.Report report = new PairBench(
                        List.of(PairBench.Pair.parse("one=" + urls), PairBench.Pair.parse("again=" + urls)),
                        List.of(100),
                        2,
                        _ -> {})
                .run(MODEL);
        assertThat(report.rows()).extracting(PairBench.Row::pair).containsExactly("one", "again");
        assertThat(report.rows().getFirst().times()).isEqualTo(1);
        // Three of each pair are not counted.
        assertThat(decode.prompts().transferred()).isEqualTo(2 * (3 + 2) * 100);

        Instance plain = INSTANCES.serve("plain");
        PairBench nothing = new PairBench(
                List.of(PairBench.Pair.parse("nothing=%s,%s".formatted(plain.url(), decode.url()))),
                List.of(100),
                1,
                _ -> {});
        assertThatThrownBy(() -> nothing.run(MODEL))
                .hasMessageContaining(plain.url().toString());
        assertThatThrownBy(() -> PairBench.Pair.parse("one=http://127.0.0.1:1"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("must be NAME=PREFILL_URL,DECODE_URL");
        assertThatThrownBy(() -> PairBench.Pair.parse("one=here,there"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("'here'");
    }
}
