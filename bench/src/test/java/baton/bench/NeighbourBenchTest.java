package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class NeighbourBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    @Test
    void measuresEachPairOfLoads() throws Exception {
        List<String> progress = new ArrayList<>();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new NeighbourBench(1, Duration.ofMillis(1), progress::add).run(TINY_LEDGER, json);
        assertThat(json.path("pairs")
                        .valueStream()
                        .map(pair -> pair.path("first").asString() + ", "
                                + pair.path("second").asString()))
                .containsExactly(
                        "prefill 512, prefill 512", "prefill 512, decode batch 8", "decode batch 8, decode batch 8");
        assertThat(json.path("pairs")).allSatisfy(pair -> {
            assertThat(pair.path("least").asDouble()).isFinite().isPositive();
            assertThat(pair.path("share").asDouble())
                    .isBetween(pair.path("least").asDouble(), pair.path("most").asDouble());
        });
        assertThat(NeighbourBench.FIGURES.text(json)).contains("decode batch 8 beside decode batch 8");
        assertThat(progress).hasSize(9).startsWith("prefill 512 beside prefill 512: round 1 of 3");
    }

    @Test
    void aMissingCheckpointIsNamed() {
        NeighbourBench bench = new NeighbourBench(1, Duration.ofMillis(1), _ -> {});
        assertThatThrownBy(() -> bench.run(Path.of("no-such-model"), JsonNodeFactory.instance.objectNode()))
                .hasMessageContaining("no-such-model");
    }
}
