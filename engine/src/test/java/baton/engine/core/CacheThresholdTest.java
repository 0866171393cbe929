package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Requests that end, with nothing computed, because caches hold less of their tokens than {@code cache_hit_threshold} requires. */
class CacheThresholdTest {
    private final ScriptedConnector connector = new ScriptedConnector();

    private CoreHarness core(LoadFailurePolicy policy) {
        return core(64, policy, config -> config);
    }

    private CoreHarness core(int blocks, LoadFailurePolicy policy, UnaryOperator<EngineConfigBuilder> settings) {
        return new CoreHarness(
                blocks,
                4,
                (EngineConfigBuilder config) ->
                        settings.apply(config.kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                                .loadFailurePolicy(policy)
                                .build())),
                Optional.of(connector));
    }

    private static Result add(CoreHarness harness, String id, int[] prompt, double threshold) {
        return harness.addWithThreshold(id, prompt, 16, threshold);
    }

    @Test
    void thePrefixCacheCounts() {
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result cold = add(harness, "cold", prompt(1, 20), 0.1);
            Result other = add(harness, "other", prompt(1, 20), 0);
            harness.run();
            assertThat(cold.reason).contains(FinishReason.CACHE_THRESHOLD);
            assertThat(cold.tokens).isEmpty();
            assertThat(other.tokens).isEqualTo(expected(prompt(1, 20), 16));
            int computed = harness.runner.computed.size();
            // The last token is always computed, so four of five blocks are hits.
            Result above = add(harness, "above", prompt(1, 20), 0.81);
            harness.run();
            assertThat(above.reason).contains(FinishReason.CACHE_THRESHOLD);
            assertThat(harness.runner.computed).hasSize(computed);
            Result equal = add(harness, "equal", prompt(1, 20), 0.8);
            harness.run();
            assertThat(equal.tokens).isEqualTo(expected(prompt(1, 20), 16));
            assertThat(harness.used()).isZero();
        }
    }

    @Test
    void tokensAtTheConnectorCount() {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, true);
        try (CoreHarness harness = core(LoadFailurePolicy.FAIL)) {
            Result above = add(harness, "above", prompt(1, 20), 0.9);
            Result enough = add(harness, "enough", prompt(2, 20), 0.8);
            harness.step();
            assertThat(above.reason).contains(FinishReason.CACHE_THRESHOLD);
            assertThat(connector.isLoading("above")).isFalse();
            connector.complete("enough");
            harness.run();
            assertThat(enough.tokens).isEqualTo(expected(prompt(2, 20), 16));
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLoadThatFailsEndsARequestThatKeepsTooLittle(LoadFailurePolicy policy) {
        connector.match = (request, computed) -> new KvMatch.Tokens(16, true);
        connector.fails = (load, index) -> index == 2;
        try (CoreHarness harness = core(policy)) {
            Result result = add(harness, "a", prompt(1, 20), 0.5);
            harness.step();
            connector.reportInvalid("a", 2);
            harness.step();
            assertThat(result.reason).contains(FinishReason.CACHE_THRESHOLD);
            connector.complete("a");
            harness.run();
            assertThat(result.tokens).isEmpty();
            assertThat(harness.runner.computed).isEmpty();
            assertThat(harness.used()).isZero();
            assertThat(harness.measured).doesNotContainKey("baton:kv_recomputed_tokens");
        }
    }

    @Test
    void aRequestThatIsPreemptedEndsWithItsOutputSoFar() {
        connector.match =
                (request, computed) -> request.length() == 9 ? new KvMatch.Tokens(8, false) : new KvMatch.None();
        try (CoreHarness harness = core(10, LoadFailurePolicy.FAIL, config -> config.enablePrefixCaching(false))) {
            Result first = add(harness, "first", prompt(1, 9), 0.5);
            Result second = add(harness, "second", prompt(2, 9), 0.5);
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(prompt(1, 9), 16));
            assertThat(second.reason).contains(FinishReason.CACHE_THRESHOLD);
            assertThat(second.tokens)
                    .isNotEmpty()
                    .isEqualTo(expected(prompt(2, 9), 16).subList(0, second.tokens.size()));
        }
    }
}
