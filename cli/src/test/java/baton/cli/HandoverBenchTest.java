package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.HandoverBench;
import baton.bench.PairBench;
import baton.cli.Instances.Instance;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class HandoverBenchTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final Path MODEL =
            Path.of(System.getProperty("user.dir")).resolveSibling("models").resolve("tiny-ledger");

    @Test
    void modelsWithTooFewPositionsAreNamed() {
        HandoverBench bench =
                new HandoverBench(HandoverBench.CONNECTORS, OptionalInt.of(1), List.of(1 << 20), 1, _ -> {});
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        assertThatThrownBy(() -> bench.run(List.of(MODEL), true, json))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(
                        "tokens", "1048576", "tiny-ledger has max_position_embeddings=2048", "llama-1b");
        json.putArray("left_out").add("short has max_position_embeddings=8");
        assertThat(HandoverBench.FIGURES.text(json)).contains("left out: short has max_position_embeddings=8");
    }

    @Tag("thorough")
    @Test
    void measuresEveryPhaseOfAHandOverBetweenTwoProcesses() throws IOException {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new HandoverBench(HandoverBench.CONNECTORS, OptionalInt.of(1), List.of(16, 160), 2, _ -> {})
                .run(List.of(MODEL), false, json);
        assertThat(json.path("models")
                        .valueStream()
                        .map(each -> each.path("connector").asString() + ", "
                                + each.path("legs").asString()))
                .containsExactly(
                        "NixlConnector, both legs at once",
                        "NixlConnector, one leg after the other",
                        "NixlPushConnector, both legs at once");
        assertThat(json.path("models")).allSatisfy(each -> {
            assertThat(each.path("first_handshake_seconds").asDouble()).isPositive();
            assertThat(each.path("sizes")
                            .valueStream()
                            .map(size -> size.path("tokens").asInt()))
                    .containsExactly(16, 160);
            assertThat(each.path("sizes")).allSatisfy(size -> {
                assertThat(size.path("repetitions").asInt()).isEqualTo(2);
                JsonNode spans = size.path("spans");
                assertThat(List.of("seal", "queue", "handshake", "start"))
                        .allSatisfy(phase ->
                                assertThat(spans.path(phase).asDouble()).isPositive());
                // Medians of two, which are their means: sums of them are means of sums.
                double load = spans.path("blocks").asDouble()
                        + spans.path("seals").asDouble()
                        + spans.path("check").asDouble();
                double toFirstStep = spans.path("to first step").asDouble();
                assertThat(load).isPositive().isLessThanOrEqualTo(toFirstStep + 1e-12);
                if (each.path("legs").asString().startsWith("one")) {
                    assertThat(spans.path("pass on").asDouble()).isPositive();
                    assertThat(size.path("seconds").asDouble()).isGreaterThan(toFirstStep);
                }
                assertThat(size.path("best_ratio").asDouble())
                        .isEqualTo(size.path("best_seconds").asDouble()
                                / size.path("best_transfer_seconds").asDouble());
            });
        });
        assertThat(HandoverBench.FIGURES.text(json))
                .contains("160 tokens", "hand-over", "ratio", "check", "pass on", "push", "at once");
        assertThat(json.at("/models/1/sizes/1/phases/blocks").asDouble()).isPositive();
    }

    @Test
    void instancesThatRunAreMeasuredInTurns() throws Exception {
        Instance prefill = INSTANCES.serveBlocks("prefill", "NixlConnector", "kv_producer");
        Instance decode = INSTANCES.serveBlocks("decode", "NixlConnector", "kv_consumer");
        String urls = prefill.url() + "," + decode.url();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new PairBench(
                        List.of(PairBench.Pair.parse("one=" + urls), PairBench.Pair.parse("again=" + urls)),
                        List.of(100),
                        2,
                        _ -> {})
                .run(MODEL, json);
        assertThat(json.path("rows").valueStream().map(row -> row.path("pair").asString()))
                .containsExactly("one", "again");
        assertThat(json.at("/rows/0/times").asDouble()).isEqualTo(1);
        assertThat(PairBench.FIGURES.text(json)).contains("hand-over (best), ms", "again");
        // Three of each pair are not counted.
        assertThat(decode.prompts().transferred()).isEqualTo(2 * (3 + 2) * 100);

        Instance plain = INSTANCES.serve("plain");
        PairBench nothing = new PairBench(
                List.of(PairBench.Pair.parse("nothing=%s,%s".formatted(plain.url(), decode.url()))),
                List.of(100),
                1,
                _ -> {});
        assertThatThrownBy(() -> nothing.run(MODEL, json))
                .hasMessageContaining(plain.url().toString());
        assertThatThrownBy(() -> PairBench.Pair.parse("one=http://127.0.0.1:1"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("must be NAME=PREFILL_URL,DECODE_URL");
        assertThatThrownBy(() -> PairBench.Pair.parse("one=here,there"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("'here'");
    }
}
