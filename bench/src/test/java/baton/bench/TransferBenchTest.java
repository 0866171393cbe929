package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.transfer.nixl.NixlExit;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class TransferBenchTest {
    @BeforeAll
    static void loadsNixlWhereItIsInstalled() {
        NixlExit.atShutdown();
    }

    @Test
    void measuresEveryAgentAndTheLimitsInOneRun() throws IOException {
        List<String> progress = new ArrayList<>();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new TransferBench(1, List.of(16, 128), Duration.ofMillis(5), progress::add).run(json);

        assertThat(progress).containsExactly("two processes with pools of 4 MiB", "16 tokens", "128 tokens");
        List<String> names = List.copyOf(json.at("/sizes/0").propertyNames());
        assertThat(names)
                .contains("copy", "shared memory", "TCP", "Mooncake's TCP", "wire: Gloo", "wire: TCP", "plain TCP");
        // Beside the tokens: NIXL and UCX if they are installed, or else a line that names them as absent.
        assertThat(names.size() - 1 - 9 + json.path("absent").size()).isEqualTo(2);
        assertThat(json.path("sizes")
                        .valueStream()
                        .map(size -> size.path("tokens").asInt()))
                .containsExactly(16, 128);
        for (JsonNode size : json.path("sizes")) {
            for (String name : names.subList(1, names.size())) {
                JsonNode rate = size.path(name);
                assertThat(rate.path("bytes").asLong())
                        .isEqualTo(size.path("tokens").asLong() * 32L << 10);
                assertThat(rate.path("bytes_per_second").asDouble())
                        .isFinite()
                        .isGreaterThanOrEqualTo(
                                rate.path("median_bytes_per_second").asDouble());
            }
            assertThat(size.at("/TCP/share").asDouble())
                    .isEqualTo(size.at("/TCP/bytes_per_second").asDouble()
                            / size.at("/plain TCP/bytes_per_second").asDouble());
        }
        assertThat(TransferBench.FIGURES.text(json))
                .contains(
                        "128 tokens, 4 MiB",
                        "shared memory",
                        "of plain TCP",
                        "and digested",
                        "and written",
                        "16 tokens at");
        assertThat(json.at("/sizes/1/TCP/bytes").asLong()).isEqualTo(4 << 20);
    }

    @Test
    void refusesInvalidSettings() {
        assertThatThrownBy(() -> new TransferBench(0, List.of(16), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("threads: is 0");
        assertThatThrownBy(() -> new TransferBench(1, List.of(17), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tokens: is [17]");
    }
}
