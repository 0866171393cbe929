package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.tuple;

import baton.bench.NeighbourBench.Load;
import baton.bench.NeighbourBench.Pair;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class NeighbourBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    @Test
    void measuresEachPairOfLoads() throws IOException {
        List<String> progress = new ArrayList<>();
        List<Pair> pairs = new NeighbourBench(1, Duration.ofMillis(1), progress::add).run(TINY_LEDGER);
        assertThat(pairs)
                .extracting(Pair::first, Pair::second)
                .containsExactly(
                        tuple(Load.PREFILL, Load.PREFILL),
                        tuple(Load.PREFILL, Load.DECODE),
                        tuple(Load.DECODE, Load.DECODE));
        assertThat(pairs).allSatisfy(pair -> {
            assertThat(pair.shares())
                    .hasSize(3)
                    .allSatisfy(share -> assertThat(share).isFinite().isPositive());
            assertThat(pair.shares()).contains(pair.share());
        });
        assertThat(progress).hasSize(9).startsWith("prefill 512 beside prefill 512: round 1 of 3");
    }

    @Test
    void aMissingCheckpointIsNamed() {
        NeighbourBench bench = new NeighbourBench(1, Duration.ofMillis(1), _ -> {});
        assertThatThrownBy(() -> bench.run(Path.of("no-such-model"))).hasMessageContaining("no-such-model");
    }
}
