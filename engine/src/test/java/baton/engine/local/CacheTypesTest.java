package baton.engine.local;

import static baton.engine.local.HandOverRequests.ask;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Hand-overs by NIXL's protocol between engines whose caches are of each type, or of two types. */
class CacheTypesTest {
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");
    private static final SamplingParams EIGHT =
            SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(8).build();

    private static EngineConfigBuilder config(DType dtype, DType cached) {
        return LLMTest.config().dtype(dtype).kvCacheDtype(cached).enablePrefixCaching(false);
    }

    private static LocalEngine start(EngineConfigBuilder config, String id) throws Exception {
        KvTransferConfig.Builder transfer = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .engineId(id)
                .loadFailurePolicy(LoadFailurePolicy.FAIL);
        Map.of("side_channel_host", "127.0.0.1", "side_channel_port", 0, "transfer_agent", "embedded")
                .forEach(transfer::extra);
        return LocalEngine.start(config.kvTransfer(transfer.build()).build(), EngineListener.NONE);
    }

    @ParameterizedTest
    @CsvSource({"F16, F16", "BF16, F8_E4M3", "F16, F8_E4M3"})
    void answersAreThoseOfOneEngineAlone(DType dtype, DType cached) throws Exception {
        List<int[]> prompts = IntStream.of(17, 100, 640)
                .mapToObj(length -> LLMTest.prompt(length, length))
                .toList();
        List<int[]> alone;
        try (LLM llm = new LLM(config(dtype, cached).build())) {
            alone = llm.generateTokens(prompts, EIGHT).stream()
                    .map(RequestOutput::tokens)
                    .toList();
        }
        try (LocalEngine prefill = start(config(dtype, cached), "prefill");
                LocalEngine decode = start(config(dtype, cached), "decode")) {
            for (int i = 0; i < prompts.size(); i++) {
                RequestOutput first = ask(prefill, "request", prompts.get(i), SamplingParams.greedy(1), KEEP);
                RequestOutput second = ask(
                        decode,
                        "request",
                        prompts.get(i),
                        EIGHT,
                        first.kvTransferParams().orElseThrow());
                assertThat(second.tokens()).isEqualTo(alone.get(i));
                assertThat(second.cachedTokens()).isEqualTo(prompts.get(i).length);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"F16, BF16", "F8_E4M3, F16"})
    void blocksOfAnotherTypeAreRefused(DType from, DType to) throws Exception {
        try (LocalEngine prefill = start(config(DType.F16, from), "prefill");
                LocalEngine decode = start(config(DType.F16, to), "decode")) {
            int[] prompt = LLMTest.prompt(1, 100);
            RequestOutput first = ask(prefill, "request", prompt, SamplingParams.greedy(1), KEEP);
            RequestOutput second = ask(
                    decode, "request", prompt, EIGHT, first.kvTransferParams().orElseThrow());
            assertThat(second.completions().getFirst().error()).isPresent();
            assertThat(second.cachedTokens()).isZero();
        }
    }
}
