package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Prompts are handed over between a processor's pool and a device's: the answer is that of one engine alone, and nothing is computed twice. */
class HandoverOnDeviceTest {
    private static final int BLOCK = 16;
    private static final int PROMPT = 2 * BLOCK + 3;
    private static final int VOCABULARY = 192;
    private static final String TOKENIZER = """
            {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false},
             "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}}
            """;
    private static final SamplingParams ANSWER =
            SamplingParams.builder().temperature(0).maxTokens(4).ignoreEos(true).build();

    /** A small random model: a simulated device needs seconds for a prompt of tiny-ledger. */
    @TempDir
    private static Path model;

    private final CudaBackend device = TestBackends.backend();

    @BeforeAll
    static void copyModel() throws IOException {
        for (String file : List.of("config.json", "model.safetensors")) {
            Files.copy(TestBackends.family("llama3").resolve(file), model.resolve(file));
        }
        Files.writeString(model.resolve("tokenizer.json"), TOKENIZER);
    }

    @ParameterizedTest(name = "{0} by buffers of {1}, prefill on a device: {2}, decode: {3}")
    @CsvSource({
        "NixlConnector, cpu, false, true",
        "NixlConnector, cpu, true, false",
        "NixlPushConnector, cpu, true, true",
        "NixlConnector, cuda, true, true",
        "NixlPushConnector, cuda, true, true"
    })
    void theAnswerIsThatOfOneEngineAlone(String connector, String buffers, boolean devicePrefill, boolean deviceDecode)
            throws Exception {
        int[] prompt = new Random(8).ints(PROMPT, 5, VOCABULARY).toArray();
        RequestOutput alone;
        try (LocalEngine engine = start(config().build(), new CpuBackend())) {
            alone = ask(engine, prompt, ANSWER, Optional.empty());
        }
        try (LocalEngine prefill = start(connector, buffers, "prefill", devicePrefill);
                LocalEngine decode = start(connector, buffers, "decode", deviceDecode)) {
            RequestOutput first = ask(
                    prefill,
                    prompt,
                    SamplingParams.greedy(1),
                    Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}")));
            RequestOutput answer = ask(decode, prompt, ANSWER, first.kvTransferParams());
            assertThat(first.kvTransferParams()).isPresent();
            assertThat(answer.tokens()).isEqualTo(alone.tokens());
            assertThat(answer.cachedTokens()).isGreaterThanOrEqualTo(2 * BLOCK);
        }
    }

    /** Tensors go from memory of the device into memory of the device, and their checksums are computed there. */
    @Test
    void tensorsAreHandedOverFromDeviceToDevice() throws Exception {
        int[] prompt = new Random(7).ints(BLOCK + 3, 5, VOCABULARY).toArray();
        RequestOutput alone;
        try (LocalEngine engine = start(config().build(), new CpuBackend())) {
            alone = ask(engine, prompt, ANSWER, Optional.empty());
        }
        int port = FreePorts.inARow(2);
        P2pRequestId id = new P2pRequestId(
                new PeerAddress("127.0.0.1", port), new PeerAddress("127.0.0.1", port + 1), "7".repeat(32));
        try (LocalEngine prefill = start(tensors(KvRole.PRODUCER, id.prefill()), device);
                LocalEngine decode = start(tensors(KvRole.CONSUMER, id.decode()), device)) {
            String asked = "cmpl-" + id.format() + "-0";
            RequestOutput _ = ask(prefill, asked, prompt, SamplingParams.greedy(1), Optional.empty());
            RequestOutput answer = ask(decode, asked, prompt, ANSWER, Optional.empty());
            assertThat(answer.tokens()).isEqualTo(alone.tokens());
            assertThat(answer.cachedTokens()).isEqualTo(prompt.length - 1);
        }
        assertThat(WiredP2pConnector.deviceBytes()).isPositive();
    }

    private static EngineConfig tensors(KvRole role, PeerAddress self) {
        return config().kvTransfer(KvTransferConfig.builder(WiredP2pConnector.NAME, role)
                        .modulePath(WiredP2pConnector.class.getPackageName())
                        .bufferDevice("cuda")
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .ip(self.host())
                        .port(self.port())
                        .bufferSize(1 << 20)
                        .extra("transport", "nccl")
                        .extra("exchange_timeout", 120)
                        .extra("transfer_timeout", 120)
                        .extra("load_timeout", 240)
                        .build())
                .build();
    }

    /** Layers are saved and loaded within steps, through a mirror of the device's pool in host memory. */
    @ParameterizedTest(name = "stored on a device: {0}, loaded on one: {1}")
    @CsvSource({"true, false", "false, true"})
    void aStoredPromptIsLoaded(boolean deviceStores, boolean deviceLoads, @TempDir Path directory) throws Exception {
        int[] prompt = new Random(9).ints(PROMPT, 5, VOCABULARY).toArray();
        KvTransferConfig transfer = KvTransferConfig.builder("SharedStorageConnector", KvRole.BOTH)
                .loadFailurePolicy(LoadFailurePolicy.FAIL)
                .extra("shared_storage_path", directory.toString())
                .build();
        RequestOutput alone;
        try (LocalEngine engine =
                start(config().kvTransfer(transfer).build(), deviceStores ? device : new CpuBackend())) {
            alone = ask(engine, prompt, ANSWER, Optional.empty());
            assertThat(alone.cachedTokens()).isZero();
        }
        try (LocalEngine engine =
                start(config().kvTransfer(transfer).build(), deviceLoads ? device : new CpuBackend())) {
            RequestOutput answer = ask(engine, prompt, ANSWER, Optional.empty());
            assertThat(answer.tokens()).isEqualTo(alone.tokens());
            assertThat(answer.cachedTokens()).isEqualTo(2 * BLOCK);
        }
    }

    private LocalEngine start(String connector, String buffers, String id, boolean onDevice) throws IOException {
        KvTransferConfig transfer = KvTransferConfig.builder(connector, KvRole.BOTH)
                .engineId(id + " of " + connector)
                .bufferDevice(buffers)
                .loadFailurePolicy(LoadFailurePolicy.FAIL)
                .extra("side_channel_host", "127.0.0.1")
                .extra("side_channel_port", 0)
                .extra("transfer_agent", "embedded")
                .build();
        return start(config().kvTransfer(transfer).build(), onDevice ? device : new CpuBackend());
    }

    private static LocalEngine start(EngineConfig config, ModelBackend backend) throws IOException {
        return LocalEngine.start(config, EngineListener.NONE, () -> backend);
    }

    private static EngineConfigBuilder config() {
        return EngineConfig.of(model)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(64)
                .blockSize(BLOCK)
                .numBlocks(12);
    }

    private static RequestOutput ask(
            LocalEngine engine, int[] prompt, SamplingParams sampling, Optional<JsonFields> params) throws Exception {
        return ask(engine, "asked", prompt, sampling, params);
    }

    private static RequestOutput ask(
            LocalEngine engine, String id, int[] prompt, SamplingParams sampling, Optional<JsonFields> params)
            throws Exception {
        GenerationRequest request = new GenerationRequest(id, prompt, sampling, params, Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result().get(300, TimeUnit.SECONDS);
    }
}
