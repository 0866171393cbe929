package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.local.EndingsTest.Connector;
import baton.engine.local.EndingsTest.Site;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** An output that one engine has begun continues in another, which loads the keys and values of prompt and output. */
class ContinuedHandOverTest {
    private static final int[] PROMPT = LLMTest.prompt(7, 70);
    private static final int BEFORE = 21;
    private static final SamplingParams SAMPLING = SamplingParams.builder()
            .temperature(1)
            .seed(3)
            .presencePenalty(1)
            .maxTokens(40)
            .ignoreEos(true)
            .build();

    @TempDir
    Path directory;

    @ParameterizedTest
    @EnumSource(names = "NIXL")
    void theOutputIsThatOfOneEngine(Connector connector) throws Exception {
        handOver(connector);
    }

    @Tag("thorough")
    @ParameterizedTest
    // Its values are for the engine itself.
    @EnumSource(names = "OFFLOADING", mode = EnumSource.Mode.EXCLUDE)
    void theOutputIsThatOfOneEngineWithEachConnector(Connector connector) throws Exception {
        handOver(connector);
    }

    private void handOver(Connector connector) throws Exception {
        Site site = new Site(directory, FreePorts.inARow(2), FreePorts.inARow(2));
        String id = "cmpl-" + connector.id(site, 1) + "-0-0000000";
        AtomicInteger computed = new AtomicInteger();
        EngineListener counting = new EngineListener() {
            @Override
            public void onStep(StepStats stats) {
                computed.addAndGet(stats.scheduledTokens());
            }
        };
        int[] undisturbed;
        try (LLM alone = new LLM(LLMTest.config().build())) {
            undisturbed =
                    alone.generateTokens(List.of(PROMPT), SAMPLING).getFirst().tokens();
        }
        int[] before = Arrays.copyOf(undisturbed, BEFORE);
        int[] both = Arrays.copyOf(PROMPT, PROMPT.length + BEFORE);
        System.arraycopy(before, 0, both, PROMPT.length, BEFORE);
        try (LocalEngine prefill = start(connector, KvRole.PRODUCER, site, EngineListener.NONE);
                LocalEngine decode = start(connector, KvRole.CONSUMER, site, counting)) {
            Optional<JsonFields> params = ask(
                            new GenerationRequest(
                                    id + 1,
                                    both,
                                    SamplingParams.greedy(1),
                                    Optional.of(HandOverRequests.PREFILL),
                                    Optional.empty(),
                                    0),
                            prefill)
                    .kvTransferParams();
            RequestOutput continued = ask(
                    new GenerationRequest(
                            id + 2, PROMPT, SAMPLING, params, Optional.empty(), 0, 0, List.of(before), true),
                    decode);
            assertThat(continued.completions().getFirst().error()).isEmpty();
            assertThat(continued.tokens()).isEqualTo(undisturbed);
            assertThat(continued.cachedTokens()).isBetween(PROMPT.length / 16 * 16, PROMPT.length);
            // The last full block, and each further token.
            assertThat(computed.get()).isLessThanOrEqualTo(16 + undisturbed.length - BEFORE);
        }
    }

    private static LocalEngine start(Connector connector, KvRole role, Site site, EngineListener listener)
            throws Exception {
        return LocalEngine.start(
                LLMTest.config()
                        .kvTransfer(connector.config(role, site).build())
                        .build(),
                listener);
    }

    private static RequestOutput ask(GenerationRequest request, LocalEngine engine) throws Exception {
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result().get(60, TimeUnit.SECONDS);
    }
}
