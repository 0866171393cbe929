package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class StoreBenchTest {
    static List<String> stores() {
        return List.copyOf(StoreBench.STORES);
    }

    @ParameterizedTest
    @MethodSource("stores")
    void measuresEveryStoreAgainstPlainCopies(String store) throws IOException {
        List<String> progress = new ArrayList<>();
        StoreReport report =
                new StoreBench(store, 1, List.of(16, 128), List.of(1, 2), Duration.ofMillis(5), progress::add).run();
        assertThat(progress)
                .containsExactly(
                        "16 tokens, ranks: 1",
                        "16 tokens, ranks: 2",
                        "128 tokens, ranks: 1",
                        "128 tokens, ranks: 2",
                        "looking up 2000 of 131072 keys");
        assertThat(report.sizes()).allSatisfy(size -> {
            assertThat(size.rates())
                    .containsOnlyKeys("copy", "put", "get", "copy of the ranges put", "copy of the ranges got");
            assertThat(size.rate("put").bytes()).isEqualTo(size.tokens() * 32L << 10);
            assertThat(size.share("get"))
                    .isEqualTo(size.rate("get").best() / size.rate("copy").best(), within(1e-9));
        });
        assertThat(report.sizes())
                .allSatisfy(size -> assertThat(size.medianShare("put", "copy of the ranges put"))
                        .isEqualTo(
                                size.rate("put").median()
                                        / size.rate("copy of the ranges put").median(),
                                within(1e-9)));
        assertThat(report.lookUp().best()).isPositive();
        StringWriter text = new StringWriter();
        report.print(new PrintWriter(text));
        assertThat(text.toString()).contains("The store " + store, "contains of 2,000 keys", "instruction sets");
        assertThat(report.toJson().at("/sizes/3/put/bytes").asLong()).isEqualTo(4 << 20);
    }

    @Test
    void refusesInvalidSettings() {
        assertThatThrownBy(() -> new StoreBench("tape", 1, List.of(16), List.of(1), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("store: unsupported value 'tape'");
        assertThatThrownBy(() -> new StoreBench("cpu", 1, List.of(16), List.of(3), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("ranks: has 3");
    }
}
