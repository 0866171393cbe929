package baton.engine.core;

import baton.engine.FinishReason;
import baton.engine.StepPhase;
import baton.engine.core.Scheduler.Outcome;
import baton.engine.core.Scheduler.Slice;
import baton.engine.core.Scheduler.Step;
import baton.engine.model.Logits;
import baton.engine.sampling.Sampler;
import baton.engine.sampling.Sampler.Choice;
import baton.engine.sampling.Sampler.LogitRow;
import baton.engine.sampling.SequenceSampler.Sampled;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Samples the next tokens of a step's requests from its logits. */
record SamplingStep(Sampler sampler, Workers workers, StepClock clock, Publisher publisher) {
    private static final Logger LOG = LoggerFactory.getLogger(EngineCore.class);

    /** How many rows of logits a slice needs, from its end. */
    static int logitsWanted(Slice slice) {
        Request request = slice.request();
        int end = slice.start() + slice.count();
        if (request.lacksPromptLogprobs(slice.start())) {
            return slice.count();
        }
        return end == request.length() ? 1 : 0;
    }

    /**
     * Samples for those requests of a step that have the KV of all their tokens.
     *
     * @return how many tokens were sampled
     */
    int sample(Step step, Outcome outcome, StepLogits batch) {
        List<Request> chosenFor = new ArrayList<>();
        List<LogitRow> wanted = new ArrayList<>();
        clock.enter(StepPhase.SAMPLING);
        int row = 0;
        for (Slice slice : step.slices()) {
            Request request = slice.request();
            int rows = logitsWanted(slice);
            int firstRow = row;
            row += rows;
            if (rows == 0
                    || request.state == Request.State.FINISHED
                    || !outcome.valid().contains(request)) {
                continue;
            }
            try {
                if (request.lacksPromptLogprobs(slice.start())) {
                    promptLogprobs(slice, batch.logits().orElseThrow(), firstRow);
                }
                if (request.computedTokens == request.length()) {
                    chosenFor.add(request);
                    wanted.add(new LogitRow(request.sampler(), firstRow + rows - 1));
                }
            } catch (RuntimeException e) {
                samplingFailed(request, e);
            }
        }
        List<Choice> choices =
                wanted.isEmpty() ? List.of() : choose(batch.logits().orElseThrow(), wanted);
        clock.enter(StepPhase.PUBLISH);
        int generated = 0;
        for (int i = 0; i < wanted.size(); i++) {
            Request request = chosenFor.get(i);
            try {
                switch (choices.get(i)) {
                    case Choice.Chosen(Sampled token) -> {
                        publisher.take(request, token);
                        generated++;
                    }
                    case Choice.NoneLeft(Optional<String> incomplete) ->
                        publisher.finish(
                                request,
                                incomplete.isEmpty() ? FinishReason.STOP : FinishReason.LENGTH,
                                incomplete.map(why -> why),
                                Optional.empty());
                    case Choice.Failed(RuntimeException cause) -> samplingFailed(request, cause);
                }
            } catch (RuntimeException e) {
                samplingFailed(request, e);
            }
        }
        return generated;
    }

    private List<Choice> choose(Logits logits, List<LogitRow> wanted) {
        try {
            return workers.withThreads(threads -> sampler.choose(logits, wanted, threads));
        } catch (RuntimeException e) {
            return Collections.nCopies(wanted.size(), new Choice.Failed(e));
        }
    }

    private void samplingFailed(Request request, RuntimeException cause) {
        LOG.error("Sampling failed for {}", request, cause);
        publisher.fail(request, "Sampling failed: " + cause.getMessage());
    }

    /** Row i of a slice predicts the token after its i-th; the last prompt token's row predicts output, not prompt. */
    private void promptLogprobs(Slice slice, Logits logits, int firstRow) {
        Request request = slice.request();
        int start = Math.max(slice.start(), request.promptLogprobsReported);
        int end = Math.min(slice.start() + slice.count(), request.outputStart() - 1);
        if (end > start) {
            int[] next = request.tokens(start + 1, end + 1);
            request.listener()
                    .onPromptLogprobs(sampler.promptLogprobs(
                            logits,
                            firstRow + start - slice.start(),
                            next,
                            request.sampling().promptLogprobs().orElseThrow()));
            request.promptLogprobsReported = end;
        }
    }
}
