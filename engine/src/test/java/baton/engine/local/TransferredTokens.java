package baton.engine.local;

import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Counts the tokens of prompts that a connector has loaded, as {@link RequestOutput} does not distinguish them from hits in the engine's
 * own pool.
 */
final class TransferredTokens {
    private final AtomicInteger tokens = new AtomicInteger();
    private int requests;

    /** As {@link LLM#generateTokens}. */
    List<RequestOutput> generate(LLM llm, List<int[]> prompts, SamplingParams sampling) {
        List<GenerationCollector> collectors = prompts.stream()
                .map(prompt ->
                        new GenerationCollector(new GenerationRequest("counted-" + requests++, prompt, sampling)))
                .toList();
        for (int i = 0; i < prompts.size(); i++) {
            GenerationCollector collector = collectors.get(i);
            llm.engine().submit(new GenerationRequest(collector.id(), prompts.get(i), sampling), event -> {
                if (event instanceof Finished finished) {
                    tokens.addAndGet(finished.usage().transferredTokens());
                }
                collector.accept(event);
            });
        }
        return collectors.stream().map(GenerationCollector::join).toList();
    }

    int count() {
        return tokens.get();
    }
}
