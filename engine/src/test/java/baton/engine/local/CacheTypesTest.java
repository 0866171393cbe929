package baton.engine.local;

import static baton.engine.local.HandOverRequests.ask;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.store.mooncake.RestStandIn;
import baton.testkit.Await;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Hand-overs between engines with caches of each type, and of two types. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class CacheTypesTest {
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");
    private static final JsonFields NONE = JsonFields.parse("kv_transfer_params", "{}");
    private static final SamplingParams EIGHT =
            SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(8).build();

    /** Answers of an engine alone, by the types. */
    private final Map<List<DType>, List<int[]>> alone = new HashMap<>();

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

    private static List<int[]> prompts() {
        return IntStream.of(17, 100, 250)
                .mapToObj(length -> LLMTest.prompt(length, length))
                .toList();
    }

    private List<int[]> alone(DType dtype, DType cached) {
        return alone.computeIfAbsent(List.of(dtype, cached), _ -> {
            try (LLM llm = new LLM(config(dtype, cached).build())) {
                return llm.generateTokens(prompts(), EIGHT).stream()
                        .map(RequestOutput::tokens)
                        .toList();
            }
        });
    }

    @ParameterizedTest
    @CsvSource({"F16, F16", "BF16, F8_E4M3", "F16, F8_E4M3"})
    void answersAreThoseOfOneEngineAlone(DType dtype, DType cached) throws Exception {
        List<int[]> alone = alone(dtype, cached);
        try (LocalEngine prefill = start(config(dtype, cached), "prefill");
                LocalEngine decode = start(config(dtype, cached), "decode")) {
            for (int i = 0; i < alone.size(); i++) {
                int[] prompt = prompts().get(i);
                RequestOutput second = handOver(prefill, decode, "request", prompt);
                assertThat(second.tokens()).isEqualTo(alone.get(i));
                assertThat(second.cachedTokens()).isEqualTo(prompt.length);
            }
        }
    }

    private static RequestOutput handOver(LocalEngine prefill, LocalEngine decode, String id, int[] prompt)
            throws Exception {
        RequestOutput first = ask(prefill, id, prompt, SamplingParams.greedy(1), KEEP);
        return ask(decode, id, prompt, EIGHT, first.kvTransferParams().orElse(NONE));
    }

    static List<Arguments> connectors() {
        return Arrays.stream(EndingsTest.Connector.values())
                .flatMap(connector -> Stream.of(
                        Arguments.of(connector, DType.F16, DType.F16),
                        Arguments.of(connector, DType.BF16, DType.F8_E4M3)))
                .toList();
    }

    @ParameterizedTest
    @MethodSource("connectors")
    void eachConnectorHandsOver(EndingsTest.Connector connector, DType dtype, DType cached, @TempDir Path directory)
            throws Exception {
        EndingsTest.Site site = new EndingsTest.Site(directory, FreePorts.inARow(2), FreePorts.inARow(2));
        UnaryOperator<EngineConfigBuilder> prefill =
                config -> transfer(config, connector.config(KvRole.PRODUCER, site));
        UnaryOperator<EngineConfigBuilder> decode = config -> transfer(config, connector.config(KvRole.CONSUMER, site));
        switch (connector) {
            case LMCACHE, SHARED_STORAGE -> throughStore(dtype, cached, prefill, decode);
            case OFFLOADING -> throughMemory(dtype, cached, prefill);
            default -> betweenPeers(connector, site, dtype, cached, prefill, decode);
        }
    }

    @ParameterizedTest
    @CsvSource({"F16, F16", "BF16, F8_E4M3"})
    void mooncakesStoreHandsOver(DType dtype, DType cached) throws Exception {
        try (RestStandIn store = new RestStandIn()) {
            UnaryOperator<EngineConfigBuilder> both = config -> transfer(
                    config,
                    KvTransferConfig.builder("MooncakeStoreConnector", KvRole.BOTH)
                            .extra("store_rest_url", store.url().toString())
                            .extra("local_buffer_size", 64 << 20));
            throughStore(dtype, cached, both, both);
        }
    }

    private static EngineConfigBuilder transfer(EngineConfigBuilder config, KvTransferConfig.Builder transfer) {
        return config.kvTransfer(
                transfer.loadFailurePolicy(LoadFailurePolicy.FAIL).build());
    }

    /** The first engine has ended, so all hits are in the store. */
    private void throughStore(
            DType dtype,
            DType cached,
            UnaryOperator<EngineConfigBuilder> prefill,
            UnaryOperator<EngineConfigBuilder> decode) {
        try (LLM llm = new LLM(prefill.apply(config(dtype, cached)).build())) {
            assertThat(llm.generateTokens(prompts(), SamplingParams.greedy(1))).hasSameSizeAs(prompts());
        }
        try (LLM llm = new LLM(decode.apply(config(dtype, cached)).build())) {
            assertLoaded(llm.generateTokens(prompts(), EIGHT), alone(dtype, cached));
        }
    }

    private void throughMemory(DType dtype, DType cached, UnaryOperator<EngineConfigBuilder> engine) throws Exception {
        List<RequestOutput> last = new ArrayList<>();
        try (LLM llm = new LLM(engine.apply(config(dtype, cached)).build())) {
            Await.until(Duration.ofMinutes(2), () -> "prompts are not loaded", () -> {
                last.clear();
                last.addAll(llm.generateTokens(prompts(), EIGHT));
                return last.stream().allMatch(CacheTypesTest::isLoaded);
            });
        }
        assertLoaded(last, alone(dtype, cached));
    }

    private void betweenPeers(
            EndingsTest.Connector connector,
            EndingsTest.Site site,
            DType dtype,
            DType cached,
            UnaryOperator<EngineConfigBuilder> first,
            UnaryOperator<EngineConfigBuilder> second)
            throws Exception {
        List<RequestOutput> outputs = new ArrayList<>();
        try (LocalEngine prefill =
                        LocalEngine.start(first.apply(config(dtype, cached)).build(), EngineListener.NONE);
                LocalEngine decode =
                        LocalEngine.start(second.apply(config(dtype, cached)).build(), EngineListener.NONE)) {
            for (int i = 0; i < prompts().size(); i++) {
                String id = "cmpl-%s-0-%08x".formatted(connector.id(site, i), i);
                outputs.add(handOver(prefill, decode, id, prompts().get(i)));
            }
        }
        assertLoaded(outputs, alone(dtype, cached));
    }

    private static void assertLoaded(List<RequestOutput> outputs, List<int[]> alone) {
        assertThat(outputs.stream().map(RequestOutput::tokens)).containsExactlyElementsOf(alone);
        assertThat(outputs).allMatch(CacheTypesTest::isLoaded);
    }

    /** All whole blocks but one of the last token came from elsewhere. */
    private static boolean isLoaded(RequestOutput output) {
        int length = output.prompt().length;
        return output.cachedTokens() >= (length - 1) / 16 * 16;
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
