package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.Engine;
import baton.engine.EngineListener;
import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Requests that warm an engine up, with the real tiny model in fp32. */
class EngineWarmUpTest {
    private static final SamplingParams RANDOM =
            SamplingParams.builder().temperature(1).maxTokens(8).ignoreEos(true).build();

    /** Records the events of requests and steps. */
    private static final class Told implements EngineListener {
        private final List<Object> events = Collections.synchronizedList(new ArrayList<>());

        @Override
        public void onStep(StepStats stats) {
            if (stats.scheduledTokens() > 0 || stats.generatedTokens() > 0 || stats.prefixCacheQueries() > 0) {
                events.add(stats);
            }
        }

        @Override
        public void onFirstToken(double seconds, PromptTokens prompt) {
            events.add(prompt);
        }

        @Override
        public void onNextToken(double seconds) {
            events.add(seconds);
        }

        @Override
        public void onFinished(RequestStats stats) {
            events.add(stats);
        }

        @Override
        public void onAllFinished(int n, int longestOutput) {
            events.add(n);
        }
    }

    private static RequestOutput generate(LocalEngine engine, String id, int[] prompt) throws Exception {
        GenerationRequest request = new GenerationRequest(id, prompt, RANDOM);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result().get(60, TimeUnit.SECONDS);
    }

    private static int[] ids(RequestOutput output) {
        return output.tokens();
    }

    @Test
    void warmUpRequestsLeaveNoTraceInTheEngine() throws Exception {
        int[] prompt = LLMTest.prompt(1, 100);
        int[] alone;
        try (LocalEngine engine = start(EngineListener.NONE)) {
            alone = ids(generate(engine, "real", prompt));
        }
        Told told = new Told();
        Told meanwhile = new Told();
        try (LocalEngine engine = start(told)) {
            try (Engine.WarmUp _ = engine.warmUp(meanwhile)) {
                generate(engine, "warm-1", prompt);
                generate(engine, "warm-2", prompt);
            }
            assertThat(engine.status().isAtRest()).isTrue();
            assertThat(engine.status().usedBlocks()).isZero();
            assertThat(told.events).isEmpty();
            assertThat(meanwhile.events).isNotEmpty();
            RequestOutput real = generate(engine, "real", prompt);
            assertThat(ids(real)).as("the seed is the first one's").isEqualTo(alone);
            assertThat(real.cachedTokens()).isZero();
            assertThat(told.events).isNotEmpty();
        }
    }

    @Test
    void warmUpRequestsThatStillRunEndWithTheWarmUp() throws Exception {
        Told told = new Told();
        try (LocalEngine engine = start(told)) {
            GenerationRequest endless = new GenerationRequest(
                    "endless",
                    LLMTest.prompt(1, 10),
                    SamplingParams.builder().maxTokens(1900).ignoreEos(true).build());
            GenerationCollector collector = new GenerationCollector(endless);
            try (Engine.WarmUp _ = engine.warmUp(EngineListener.NONE)) {
                engine.submit(endless, collector);
                LLMTest.await(() -> engine.status().usedBlocks() > 0);
            }
            assertThat(engine.status().usedBlocks()).isZero();
            assertThat(collector
                            .result()
                            .get(120, TimeUnit.SECONDS)
                            .completions()
                            .getFirst()
                            .reason())
                    .isEqualTo(FinishReason.ABORT);
            assertThat(told.events).isEmpty();
        }
    }

    @Test
    void anEngineThatIsClosedDoesNotWarmUp() throws Exception {
        LocalEngine engine = start(EngineListener.NONE);
        engine.close();
        assertThatThrownBy(() -> engine.warmUp(EngineListener.NONE)).isInstanceOf(EngineUnavailableException.class);
    }

    private static LocalEngine start(EngineListener listener) throws IOException {
        return LocalEngine.start(LLMTest.config().build(), listener);
    }
}
