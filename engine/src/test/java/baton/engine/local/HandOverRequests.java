package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/** Requests with {@code kv_transfer_params}. */
final class HandOverRequests {
    private HandOverRequests() {}

    /** The greedy answer of so many tokens, which is to have no error. */
    static RequestOutput ask(LocalEngine engine, String id, int[] prompt, int tokens, JsonFields params)
            throws Exception {
        SamplingParams greedy = SamplingParams.builder()
                .temperature(0)
                .maxTokens(tokens)
                .ignoreEos(true)
                .build();
        RequestOutput output = ask(engine, id, prompt, greedy, params);
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output;
    }

    static RequestOutput ask(LocalEngine engine, String id, int[] prompt, SamplingParams sampling, JsonFields params)
            throws Exception {
        GenerationRequest request =
                new GenerationRequest(id, prompt, sampling, Optional.of(params), Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result().get(60, TimeUnit.SECONDS);
    }
}
