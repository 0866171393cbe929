package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The visible part of the warm-up of a process: one line in its log. */
@Tag("thorough")
class WarmUpTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @ParameterizedTest
    @ValueSource(strings = {"kv_producer", "kv_consumer", "kv_both"})
    void anInstanceIsReadyWhenItIsWarm(String role) throws Exception {
        Path shared = INSTANCES.directory("shared-" + role);
        Instance instance = INSTANCES.serve("warm-" + role, role, shared, "--warmup", "--dtype", "float32");
        assertThat(instance.get("/health").status()).isEqualTo(200);
        assertThat(instance.metrics().entrySet().stream()
                        .filter(sample -> sample.getValue() != 0)
                        .map(Map.Entry::getKey)
                        .filter(name -> !name.startsWith("vllm:cache_config_info")
                                && !name.startsWith("vllm:lora_requests_info")
                                && !name.startsWith("baton:kv_blocks_total")))
                .as("series that moved")
                .isEmpty();
        assertThat(shared).isEmptyDirectory();
        List<String> log = instance.log().lines().toList();
        assertThat(log)
                .filteredOn(line -> line.contains("warmed up in"))
                .singleElement()
                .satisfies(line -> assertThat(line).contains("INFO", "prompts of 1", "hand-overs between stand-ins"));
        assertThat(log).noneMatch(line -> line.contains("access"));
        // Nothing of it is in the way.
        Reply reply = instance.complete(Ledgers.prompt(10, 1), 4);
        assertThat(reply.cachedTokens()).isZero();
        assertThat(reply.tokenIds()).hasSize(4);
    }

    @Test
    void aRouterIsReadyAfterItsWarmUp() throws Exception {
        Instance instance = INSTANCES.serve("cold");
        Instance router = INSTANCES.route("router", List.of(instance), List.of(instance), "--warmup");
        assertThat(router.get("/health").status()).isEqualTo(200);
        assertThat(router.metrics().entrySet().stream()
                        .filter(sample -> sample.getValue() != 0)
                        .map(Map.Entry::getKey)
                        .filter(name -> !name.startsWith("baton:router_instances")))
                .as("series that moved")
                .isEmpty();
        assertThat(router.log().lines())
                .filteredOn(line -> line.contains("warmed up in"))
                .singleElement()
                .satisfies(line -> assertThat(line).contains("INFO", "requests to stand-ins"));
        assertThat(router.log().lines()).noneMatch(line -> line.contains("outcome="));
        assertThat(instance.log().lines()).noneMatch(line -> line.contains("warmed up in"));
        assertThat(instance.metric("vllm:request_success_total", "")).isZero();
    }
}
