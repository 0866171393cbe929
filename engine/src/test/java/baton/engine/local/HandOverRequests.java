package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** Requests with {@code kv_transfer_params}. */
final class HandOverRequests {
    /** The parameters of a prefill leg. */
    static final JsonFields PREFILL = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");

    private HandOverRequests() {}

    /** The greedy answer of so many tokens, which is to have no error. */
    static RequestOutput ask(LocalEngine engine, String id, int[] prompt, int tokens, JsonFields params)
            throws Exception {
        return good(begin(engine, id, prompt, greedy(tokens), params));
    }

    /** The answers of both legs of one request, which begin at the same time. The prefill leg's comes first. */
    static List<RequestOutput> askBoth(LocalEngine prefill, LocalEngine decode, String id, int[] prompt, int tokens)
            throws Exception {
        JsonFields ahead = prefill.advertisedKvTransferParams().orElseThrow();
        Future<RequestOutput> second = begin(decode, id + "-0-00000002", prompt, greedy(tokens), ahead);
        Future<RequestOutput> first = begin(prefill, id + "-0-00000001", prompt, greedy(1), PREFILL);
        return List.of(good(first), good(second));
    }

    private static RequestOutput good(Future<RequestOutput> answer) throws Exception {
        RequestOutput output = answer.get(60, TimeUnit.SECONDS);
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output;
    }

    private static SamplingParams greedy(int tokens) {
        return SamplingParams.builder()
                .temperature(0)
                .maxTokens(tokens)
                .ignoreEos(true)
                .build();
    }

    static RequestOutput ask(LocalEngine engine, String id, int[] prompt, SamplingParams sampling, JsonFields params)
            throws Exception {
        return begin(engine, id, prompt, sampling, params).get(60, TimeUnit.SECONDS);
    }

    private static Future<RequestOutput> begin(
            LocalEngine engine, String id, int[] prompt, SamplingParams sampling, JsonFields params) {
        GenerationRequest request =
                new GenerationRequest(id, prompt, sampling, Optional.of(params), Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }
}
