package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.kv.ConfigException;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class StoreBenchTest {
    static List<String> stores() {
        return List.copyOf(StoreBench.STORES);
    }

    @ParameterizedTest
    @MethodSource("stores")
    void measuresEveryStoreAgainstPlainCopies(String store) throws IOException {
        List<String> progress = new ArrayList<>();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new StoreBench(store, 1, List.of(16, 128), List.of(1, 2), Duration.ofMillis(5), progress::add).run(json);
        assertThat(progress)
                .containsExactly(
                        "16 tokens, ranks: 1",
                        "16 tokens, ranks: 2",
                        "128 tokens, ranks: 1",
                        "128 tokens, ranks: 2",
                        "looking up 2000 of 131072 keys");
        assertThat(json.path("sizes")).hasSize(4).allSatisfy(size -> {
            assertThat(size.propertyNames())
                    .contains("copy", "put", "get", "copy of the ranges put", "copy of the ranges got");
            assertThat(size.at("/put/bytes").asLong())
                    .isEqualTo(size.path("tokens").asLong() * 32L << 10);
            assertThat(size.at("/get/share").asDouble())
                    .isCloseTo(ratio(size, "bytes_per_second", "get", "copy"), within(1e-9));
            assertThat(size.at("/put/median_share_of_ranges").asDouble())
                    .isCloseTo(ratio(size, "median_bytes_per_second", "put", "copy of the ranges put"), within(1e-9));
        });
        assertThat(json.at("/contains/seconds").asDouble()).isPositive();
        assertThat(StoreBench.FIGURES.text(json))
                .contains("The store " + store, "contains of 2,000 keys", "instruction sets", "copying kernel alone");
        assertThat(json.at("/sizes/3/put/bytes").asLong()).isEqualTo(4 << 20);
    }

    private static double ratio(JsonNode size, String field, String name, String of) {
        return size.path(name).path(field).asDouble()
                / size.path(of).path(field).asDouble();
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
