package baton.engine.local;

import baton.engine.GenerationEvent;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Output;
import baton.engine.GenerationEvent.PromptLogprobs;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.RequestOutput.Completion;
import baton.engine.TokenLogprobs;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/** Gathers a request's events into one result. */
public final class GenerationCollector implements Consumer<GenerationEvent> {
    private final GenerationRequest request;
    private final Partial[] partials;
    private final CompletableFuture<RequestOutput> result = new CompletableFuture<>();
    private List<TokenLogprobs> promptLogprobs = List.of();
    private Optional<JsonFields> kvTransferParams = Optional.empty();
    private int cachedTokens;
    private int unfinished;

    public GenerationCollector(GenerationRequest request) {
        this.request = request;
        this.partials = IntStream.range(0, request.sampling().n())
                .mapToObj(index -> new Partial())
                .toArray(Partial[]::new);
        this.unfinished = partials.length;
    }

    String id() {
        return request.id();
    }

    /** Completes when all of the request's sequences have ended, well or badly. */
    public CompletableFuture<RequestOutput> result() {
        return result;
    }

    /** Waits for {@link #result}, without a deadline: every request that the engine accepted ends, also when the engine fails. */
    RequestOutput join() {
        return result.join();
    }

    @Override
    public void accept(GenerationEvent event) {
        Partial partial = partials[event.index()];
        switch (event) {
            case PromptLogprobs(int index, List<TokenLogprobs> logprobs) -> {
                if (index == 0) {
                    promptLogprobs = logprobs;
                }
            }
            case Output output -> partial.add(output);
            case Finished finished -> {
                partial.completions.add(partial.completion(finished));
                if (finished.index() == 0) {
                    cachedTokens = finished.usage().cachedTokens();
                }
                if (kvTransferParams.isEmpty()) {
                    kvTransferParams = finished.kvTransferParams();
                }
                if (--unfinished == 0) {
                    List<Completion> completions = Arrays.stream(partials)
                            .map(each -> each.completions.getFirst())
                            .toList();
                    result.complete(new RequestOutput(
                            request.id(),
                            request.prompt(),
                            promptLogprobs,
                            completions,
                            cachedTokens,
                            kvTransferParams));
                }
            }
        }
    }

    /** Keeps a sequence's outputs as they come, which costs the engine's thread next to nothing, and puts them together at the end. */
    private static final class Partial {
        private final List<Output> outputs = new ArrayList<>();
        private final List<Completion> completions = new ArrayList<>(1);

        private void add(Output output) {
            outputs.add(output);
        }

        private Completion completion(Finished finished) {
            StringBuilder text = new StringBuilder();
            List<TokenLogprobs> logprobs = new ArrayList<>();
            for (Output output : outputs) {
                text.append(output.text());
                logprobs.addAll(output.logprobs());
            }
            return new Completion(
                    finished.index(),
                    text.toString(),
                    outputs.stream()
                            .flatMapToInt(output -> Arrays.stream(output.ids()))
                            .toArray(),
                    List.copyOf(logprobs),
                    finished.reason(),
                    finished.stopReason(),
                    finished.error());
        }
    }
}
