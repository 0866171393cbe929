package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvMatch;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** A request that warms up is computed like other requests and leaves nothing behind. */
class WarmUpRequestTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(int blocks) {
        return new CoreHarness(
                blocks,
                4,
                (EngineConfigBuilder config) -> config.kvTransfer(
                        KvTransferConfig.builder("Scripted", KvRole.BOTH).build()),
                Optional.of(connector));
    }

    @Test
    void theConnectorDoesNotSeeAWarmUpRequest() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16 - computed, false);
        connector.wantsHidden = true;
        connector.delayed = Set.of("warm");
        try (CoreHarness harness = core(64)) {
            Result result = harness.addWarmUp("warm", prompt(1, 19), 4);
            harness.run();
            assertThat(result.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(result.params).isEmpty();
            assertThat(connector.events).isEmpty();
            assertThat(connector.saved).isEmpty();
            assertThat(connector.started).isEmpty();
            assertThat(harness.core.status(Optional.empty()).isAtRest()).isTrue();
        }
    }

    @Test
    void aLaterRequestFindsNoCachedBlocksOfAWarmUpRequest() {
        try (CoreHarness harness = core(64)) {
            harness.addWarmUp("warm", prompt(1, 19), 4);
            harness.run();
            Result later = harness.add("later", prompt(1, 19), 4);
            harness.run();
            assertThat(later.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(later.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(connector.events)
                    .containsExactly("new later", "match later 0", "allocated later 0", "finished later LENGTH");
        }
    }

    @Test
    void warmUpRequestsWithTheSamePromptDoNotWaitForBlocksThatAreNeverShared() {
        try (CoreHarness harness = core(64)) {
            Result first = harness.addWarmUp("first", prompt(1, 19), 4);
            Result second = harness.addWarmUp("second", prompt(1, 19), 4);
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(second.tokens).isEqualTo(expected(prompt(1, 19), 4));
            assertThat(harness.tokensComputed()).isEqualTo(2 * (19 + 3));
        }
    }

    @Test
    void theConnectorDoesNotSeeAPreemptedWarmUpRequestEither() {
        try (CoreHarness harness = core(12)) {
            Result first = harness.addWarmUp("first", prompt(1, 20), 26);
            Result second = harness.addWarmUp("second", prompt(2, 20), 26);
            harness.run();
            assertThat(harness.steps.stream().mapToInt(step -> step.preempted()).sum())
                    .isPositive();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, 20), 26));
            assertThat(second.tokens).isEqualTo(expected(prompt(2, 20), 26));
            assertThat(connector.preempted).isEmpty();
        }
    }
}
