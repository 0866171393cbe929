package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.SchedulingPolicy;
import baton.engine.core.CoreHarness.Result;
import baton.engine.core.Scheduler.Slice;
import baton.engine.core.Scheduler.Step;
import baton.engine.core.Workers.StepReport;
import baton.kv.BlockHasher;
import baton.kv.LoadFailurePolicy;
import baton.kv.VerifyKv;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Logits of whole prompts are large: a step makes few of them, however long the prompts and however many they are. */
class PromptLogprobsScheduleTest {
    private static final int BLOCK_SIZE = 4;
    private static final int MAX_ROWS = 6;

    private final BlockHasher hasher = new BlockHasher(BLOCK_SIZE);
    private final Scheduler scheduler = new Scheduler(
            new BlockPool(64),
            CacheEvents.disabled(),
            new SchedulerConfig(
                    BLOCK_SIZE,
                    8,
                    40,
                    MAX_ROWS,
                    SchedulingPolicy.FCFS,
                    40,
                    true,
                    LoadFailurePolicy.RECOMPUTE,
                    VerifyKv.AUTO),
            Optional.empty(),
            () -> 0);
    private final Map<String, Integer> computed = new HashMap<>();

    @Test
    void theRowsOfAStepAreBoundedAndOtherRequestsAreNotHeldUp() {
        add("a", 17, true);
        add("b", 9, true);
        add("c", 30, false);
        int steps = 0;
        while (!computed.equals(Map.of("a", 17, "b", 9, "c", 30))) {
            Step step = scheduler.schedule();
            assertThat(step.slices().stream()
                            .filter(slice -> slice.request().wantsPromptLogprobs())
                            .mapToInt(Slice::count)
                            .sum())
                    .isBetween(1, MAX_ROWS);
            for (Slice slice : step.slices()) {
                assertThat(slice.count()).isPositive();
                slice.request().promptLogprobsReported = slice.start() + slice.count();
                computed.merge(slice.request().id(), slice.count(), Integer::sum);
            }
            scheduler.executed(step, StepReport.NOTHING, Set.of(), Set.of());
            scheduler.checkInvariants();
            if (steps == 0) {
                // Beside the first rows of a, all of c.
                assertThat(computed).isEqualTo(Map.of("a", MAX_ROWS, "c", 30));
                scheduler.finish(scheduler.find("c").orElseThrow(), RequestEnd.ABORTED);
            }
            assertThat(++steps).isLessThan(20);
        }
        assertThat(steps).isEqualTo(5);
    }

    private void add(String id, int promptLength, boolean logprobs) {
        SamplingParamsBuilder sampling = SamplingParams.builder();
        if (logprobs) {
            sampling.promptLogprobs(1);
        }
        int[] prompt = CoreHarness.prompt(id.charAt(0), promptLength);
        Request request = new Request(
                id,
                prompt,
                100,
                sampling.build(),
                hasher,
                new Result(prompt),
                SequenceOptions.builder().arrivalNanos(1).build());
        assertThat(scheduler.add(request)).isEmpty();
    }
}
