package baton.engine.local;

import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Output;
import baton.engine.GenerationEvent.PromptLogprobs;
import baton.engine.GenerationEvent.Usage;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.core.RequestListener;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.engine.sampling.StopMatcher;
import baton.engine.text.Detokenizer;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.IntConsumer;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Turns one sequence's tokens into events: text that never ends within a character or within the beginning of a stop string. If
 * the sink throws, the sequence fails; the sink still gets its end, and an exception from that is only logged.
 */
final class SequenceOutput implements RequestListener {
    private static final Logger LOG = LoggerFactory.getLogger(SequenceOutput.class);
    private static final int[] NO_TOKENS = {};

    private final int index;
    private final Detokenizer detokenizer;
    private final StopMatcher stops;
    private final int minTokens;
    private final boolean keepStopToken;
    private final Consumer<GenerationEvent> sink;
    private final IntConsumer ended;
    private final List<TokenLogprobs> promptLogprobs = new ArrayList<>();
    private int tokens;

    /** @param ended called before the last event, with the number of tokens generated */
    SequenceOutput(
            int index,
            SamplingParams sampling,
            Detokenizer detokenizer,
            Consumer<GenerationEvent> sink,
            IntConsumer ended) {
        this.index = index;
        this.detokenizer = detokenizer;
        this.stops = new StopMatcher(sampling.stop(), sampling.includeStopInOutput());
        this.minTokens = sampling.minTokens();
        this.keepStopToken = sampling.includeStopInOutput();
        this.sink = sink;
        this.ended = ended;
    }

    @Override
    public void onPromptLogprobs(List<TokenLogprobs> logprobs) {
        promptLogprobs.addAll(logprobs);
    }

    @Override
    public Optional<String> onToken(Sampled token, boolean ends) {
        if (!promptLogprobs.isEmpty()) {
            sink.accept(new PromptLogprobs(index, List.copyOf(promptLogprobs)));
            promptLogprobs.clear();
        }
        tokens++;
        // The text of the token that ends the output is not part of the output.
        String text = ends && !keepStopToken ? "" : detokenizer.append(token.id());
        // As in vLLM, a stop string may begin but not end in the text of the first min_tokens tokens.
        StopMatcher.Result result = tokens <= minTokens
                ? new StopMatcher.Result(stops.pass(text), Optional.empty())
                : stops.append(text, false);
        sink.accept(new Output(
                index,
                new int[] {token.id()},
                result.text(),
                token.logprobs().map(List::of).orElse(List.of())));
        return result.stop();
    }

    @Override
    public void onFinished(
            FinishReason reason,
            Optional<Object> stopReason,
            RequestStats stats,
            Optional<JsonFields> kvTransferParams,
            Optional<String> error) {
        ended.accept(stats.outputTokens());
        boolean isCut = reason == FinishReason.STOP
                && stopReason.filter(String.class::isInstance).isPresent();
        if (reason != FinishReason.ERROR && !isCut) {
            deliver(() -> {
                String rest = stops.append(detokenizer.finish(), true).text();
                return rest.isEmpty() ? Optional.empty() : Optional.of(new Output(index, NO_TOKENS, rest, List.of()));
            });
        }
        Usage usage = new Usage(
                stats.promptTokens(),
                stats.prompt().localCacheHit() + stats.prompt().externalKvTransfer(),
                stats.prompt().externalKvTransfer(),
                stats.outputTokens());
        deliver(() ->
                Optional.of(new Finished(index, reason, stopReason, usage, kvTransferParams, error, stats.times())));
    }

    private void deliver(Supplier<Optional<GenerationEvent>> event) {
        try {
            event.get().ifPresent(sink);
        } catch (RuntimeException e) {
            LOG.error("The end of a sequence could not be delivered", e);
        }
    }
}
