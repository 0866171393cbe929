package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.EngineListener;
import baton.engine.EngineListener.StepTimes;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.StepPhase;
import baton.engine.StepProfile;
import baton.engine.StepProfile.Percentile;
import baton.engine.StepProfile.Summary;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class StepProfileTest {
    private final StepProfile profile = new StepProfile();

    private static StepTimes times(int sequences, int tokens, long modelNanos) {
        return new StepTimes(sequences, tokens, Map.of(StepPhase.MODEL, modelNanos, StepPhase.SCHEDULE, 7L));
    }

    @Test
    void percentilesAreWithinTwoPercent() {
        long[] model = new Random(1)
                .doubles(5000, Math.log(10), Math.log(1e10))
                .mapToLong(log -> (long) Math.exp(log))
                .toArray();
        for (long nanos : model) {
            profile.onStepTimes(times(4, 4, nanos));
        }
        Arrays.sort(model);
        Summary summary = profile.summaries().getFirst();
        assertThat(summary.steps()).isEqualTo(5000);
        assertThat(summary.percentiles()).extracting(Percentile::share).containsExactly(0.5, 0.9, 0.99);
        for (Percentile percentile : summary.percentiles()) {
            double exact = model[(int) (percentile.share() * 5000) - 1];
            assertThat(percentile.phase(StepPhase.MODEL)).isCloseTo(exact, within(exact * 0.02));
            assertThat(percentile.total()).isCloseTo(exact + 7, within(exact * 0.02));
            assertThat(percentile.overhead()).isEqualTo(7);
        }
    }

    @Test
    void stepsAreGroupedByKindAndSize() {
        IntStream.rangeClosed(1, 9).forEach(sequences -> profile.onStepTimes(times(sequences, sequences, 1)));
        profile.onStepTimes(times(2, 513, 1));
        profile.onStepTimes(times(1, 1024, 1));
        assertThat(profile.summaries())
                .extracting(summary -> summary.group() + ": " + summary.steps())
                .containsExactly(
                        "decode 1: 1",
                        "decode 2: 1",
                        "decode 3-4: 2",
                        "decode 5-8: 4",
                        "decode 9-16: 1",
                        "prompts, 513-1024 tokens: 2");
    }

    @Test
    void theTableIsInMicroseconds() {
        profile.onStepTimes(times(1, 1, 5_000_000));
        assertThat(profile.takeTable())
                .contains("decode 1 ", " p50 ", " p99 ")
                .containsPattern("49[0-9]{2}\\.[0-9]|50[0-9]{2}\\.[0-9]");
        assertThat(profile.takeTable()).contains("no steps");
    }

    /** The phases of a real engine's steps are all there and make up the time that passed. */
    @Test
    void phasesAddUpToTheTimeThatPassed() throws IOException {
        List<StepTimes> seen = new ArrayList<>();
        EngineListener listener = new EngineListener() {
            @Override
            public void onStepTimes(StepTimes times) {
                seen.add(times);
            }
        };
        long start = System.nanoTime();
        try (LocalEngine engine = LocalEngine.start(LLMTest.config().build(), listener.and(profile))) {
            GenerationRequest request = new GenerationRequest(
                    "profiled",
                    LLMTest.prompt(1, 100),
                    SamplingParams.builder()
                            .temperature(0)
                            .maxTokens(20)
                            .ignoreEos(true)
                            .build());
            GenerationCollector collector = new GenerationCollector(request);
            engine.submit(request, collector);
            collector.result().orTimeout(120, TimeUnit.SECONDS).join();
        }
        long passed = System.nanoTime() - start;

        assertThat(seen).hasSize(20);
        assertThat(seen.getFirst())
                .extracting(StepTimes::sequences, StepTimes::tokens)
                .containsExactly(1, 100);
        assertThat(seen.getFirst().nanos(StepPhase.BETWEEN))
                .as("waiting for work is left out")
                .isLessThan(passed / 4);
        assertThat(seen.stream().mapToLong(StepTimes::totalNanos).sum()).isLessThan(passed);
        for (StepTimes step : seen) {
            assertThat(step.totalNanos())
                    .isEqualTo(List.of(StepPhase.values()).stream()
                            .mapToLong(step::nanos)
                            .sum());
            for (StepPhase phase : List.of(
                    StepPhase.SCHEDULE, StepPhase.BATCH, StepPhase.MODEL, StepPhase.SAMPLING, StepPhase.PUBLISH)) {
                assertThat(step.nanos(phase)).as("%s", phase).isPositive();
            }
        }
        assertThat(profile.summaries()).extracting(Summary::steps).containsExactly(19L, 1L);
    }
}
