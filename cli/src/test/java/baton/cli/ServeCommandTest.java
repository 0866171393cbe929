package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineConfig;
import baton.engine.ParallelConfig;
import baton.engine.SchedulingPolicy;
import baton.engine.model.Device;
import baton.engine.model.GenerationConfig;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.server.ServerConfig;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** vLLM's flags and their effects. */
@Isolated("It sets the process's standard error.")
class ServeCommandTest {
    private static ServeCommand parsed(String... flags) {
        ServeCommand serve = new ServeCommand();
        String[] arguments = Stream.concat(Stream.of("serve"), Stream.of(flags)).toArray(String[]::new);
        Baton.commandLine(serve).parseArgs(Baton.withoutConfigs(serve, arguments));
        return serve;
    }

    private static EngineConfig config(String... flags) {
        return parsed(flags).engineConfig();
    }

    private static ServerConfig server(String... flags) {
        ServeCommand serve = parsed(flags);
        return serve.serverConfig(serve.engineConfig()).build();
    }

    /** The logged form of a line of the access log. */
    private static String logged(ServerConfig config) {
        PrintStream err = System.err;
        ByteArrayOutputStream seen = new ByteArrayOutputStream();
        System.setErr(new PrintStream(seen, true, StandardCharsets.UTF_8));
        try {
            config.accessLog().accept("a line");
        } finally {
            System.setErr(err);
        }
        return seen.toString(StandardCharsets.UTF_8);
    }

    @Test
    void defaultsOfSamplingInVllmsForms() {
        assertThat(config("m").generation()).isEqualTo(GenerationConfig.CHECKPOINT);
        GenerationConfig generation = config(
                        "m",
                        "--generation-config",
                        "vllm",
                        "--override_generation_config.max_new_tokens",
                        "5",
                        "--override-generation-config",
                        "{\"temperature\": 0.5, \"max_new_tokens\": 9}")
                .generation();
        assertThat(generation.source()).isEqualTo("vllm");
        assertThat(generation.overrides())
                .isEqualTo(JsonFields.parse("", "{\"temperature\": 0.5, \"max_new_tokens\": 5}"));
        assertThatThrownBy(() -> config("m", "--override-generation-config", "{"))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("--override-generation-config: not valid JSON");
    }

    @Test
    void theServersFlagsArrive() {
        ServerConfig plain = server("dir/m");
        assertThat(plain.servedModelNames()).containsExactly("m");
        assertThat(plain.trustRequestChatTemplate()).isFalse();
        assertThat(plain.unloggedPaths())
                .containsExactlyInAnyOrder("/health", "/ping", "/metrics", "/load", "/kv_transfer_params");
        assertThat(logged(plain)).contains("access - a line");
        ServerConfig set = server(
                "m",
                "--served-model-name",
                "a",
                "b",
                "--host",
                "::1",
                "--port",
                "0",
                "--api-key",
                "k",
                "--response-role",
                "model",
                "--trust-request-chat-template",
                "--no-kv-prompt-token-ids",
                "--disable-uvicorn-access-log",
                "--disable-access-log-for-endpoints",
                "/health,/v1/models");
        assertThat(set.servedModelNames()).containsExactly("a", "b");
        assertThat(set.host()).isEqualTo("::1");
        assertThat(set.port()).isZero();
        assertThat(set.apiKey()).contains("k");
        assertThat(set.responseRole()).isEqualTo("model");
        assertThat(plain.responseRole()).isEqualTo("assistant");
        assertThat(plain.reasoningParser()).isEmpty();
        assertThat(server("m", "--reasoning-parser", "qwen3").reasoningParser()).contains("qwen3");
        assertThat(set.trustRequestChatTemplate()).isTrue();
        assertThat(server("m", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
                        .toolCallParser())
                .contains("hermes");
        assertThat(server("m", "--tool-call-parser", "hermes").toolCallParser()).isEmpty();
        assertThatThrownBy(() -> server("m", "--enable-auto-tool-choice"))
                .hasMessage("enable_auto_tool_choice: requires --tool-call-parser, such as --tool-call-parser auto");
        assertThat(plain.kvPromptTokenIds()).isTrue();
        assertThat(set.kvPromptTokenIds()).isFalse();
        assertThat(set.unloggedPaths()).containsExactlyInAnyOrder("/health", "/v1/models");
        assertThat(logged(set)).isEmpty();
        assertThat(server("m", "--disable-access-log-for-endpoints", "").unloggedPaths())
                .isEmpty();
    }

    @Test
    void flagsForPeersBecomeConnectorSettings() {
        ServeCommand serve = parsed(
                "m", "--kv-auth-secret-file", "/run/secret", "--kv-encryption=required", "--kv-allow-unauthenticated");
        serve.kvTransfer(Optional.of(KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .extra("kv_auth_secret_file", "/another")
                .extra("kv_lease_duration", 3)
                .build()));
        JsonFields extra = serve.engineConfig().kvTransfer().extra();
        assertThat(extra.string("kv_auth_secret_file")).contains("/run/secret");
        assertThat(extra.string("kv_encryption")).contains("required");
        assertThat(extra.bool("kv_allow_unauthenticated")).contains(true);
        assertThat(extra.integerAtLeast("kv_lease_duration", 0)).contains(3);
        ServeCommand plain = parsed("m");
        plain.kvTransfer(Optional.of(
                KvTransferConfig.builder("NixlConnector", KvRole.BOTH).build()));
        assertThat(plain.engineConfig().kvTransfer().extra().isEmpty()).isTrue();
    }

    @Test
    void defaultsAreThoseOfTheEngine() {
        EngineConfig plain = EngineConfig.of(Path.of("m")).build();
        EngineConfig config = config("m");
        assertThat(config)
                .usingRecursiveComparison()
                .ignoringFields("kvTransfer.engineId")
                .isEqualTo(plain);
        assertThat(config.blockSize()).isEqualTo(16);
        assertThat(config.maxNumBatchedTokens()).isEqualTo(2048);
        assertThat(config.enablePrefixCaching()).isTrue();
    }

    @Test
    void typesOfWeightsAndOfTheCacheHaveTheSameNames() {
        for (String name : List.of("half", "fp16", "float16", "F16")) {
            EngineConfig config = config("m", "--dtype", name, "--kv-cache-dtype", name);
            assertThat(config.dtype()).as(name).contains(DType.F16);
            assertThat(config.kvCacheDtype()).as(name).contains(DType.F16);
        }
    }

    @Test
    void everyFlagArrives() {
        EngineConfig config = config(
                "--model",
                "m",
                "--dtype",
                "float32",
                "--quantization",
                "int8",
                "--kv-cache-dtype",
                "bf16",
                "--max-model-len",
                "1K",
                "--block-size",
                "32",
                "--max-num-seqs",
                "3",
                "--max-num-batched-tokens",
                "2k",
                "--scheduling-policy",
                "priority",
                "--long-prefill-token-threshold",
                "500",
                "--no-enable-prefix-caching",
                "--kv-cache-memory-bytes",
                "0.5G",
                "--max-waiting",
                "7",
                "--threads",
                "2",
                "--seed",
                "9");
        assertThat(config.model()).isEqualTo(Path.of("m"));
        assertThat(config.dtype()).contains(DType.F32);
        assertThat(config.quantization()).isEqualTo(Quantization.INT8);
        assertThat(config.kvCacheDtype()).contains(DType.BF16);
        assertThat(config.maxModelLen()).hasValue(1024);
        assertThat(config.blockSize()).isEqualTo(32);
        assertThat(config.maxNumSeqs()).isEqualTo(3);
        assertThat(config.maxNumBatchedTokens()).isEqualTo(2000);
        assertThat(config.schedulingPolicy()).isEqualTo(SchedulingPolicy.PRIORITY);
        assertThat(config.longPrefillTokenThreshold()).isEqualTo(500);
        assertThat(config.enablePrefixCaching()).isFalse();
        assertThat(config.kvCacheBytes()).isEqualTo(1L << 29);
        assertThat(config.maxWaiting()).isEqualTo(7);
        assertThat(config.threads()).hasValue(2);
        assertThat(config.seed()).isEqualTo(9);
        assertThat(config("m", "--num-gpu-blocks-override", "50").numBlocks()).hasValue(50);
    }

    @Test
    void vllmFlagsWithoutEffectAreAccepted() {
        EngineConfig config = config(
                "m",
                "--gpu-memory-utilization",
                "0.9",
                "--enforce-eager",
                "--trust-remote-code",
                "--enable-chunked-prefill",
                "--disable-log-requests",
                "--enable-prompt-tokens-details",
                "--uvicorn-log-level",
                "warning",
                "--tensor-parallel-size",
                "1",
                "-pp",
                "1");
        assertThat(config.model()).isEqualTo(Path.of("m"));
    }

    @Test
    void ranksAndTheirCores() {
        ParallelConfig parallel = config("m", "-tp", "2", "--pipeline-parallel-size", "2", "--cpu-bind", "0-1|2|3|4")
                .parallel();
        assertThat(parallel.tensorParallelSize()).isEqualTo(2);
        assertThat(parallel.pipelineParallelSize()).isEqualTo(2);
        assertThat(parallel.cpuBinding().coresByRank()).hasSize(4);
        assertThat(parallel.threadsPerRank(OptionalInt.empty())).isEqualTo(1);
        assertThat(parallel.threadsPerRank(OptionalInt.of(12))).isEqualTo(3);
        assertThat(config("m").parallel()).isEqualTo(ParallelConfig.SINGLE);
        assertThat(config("m", "--device", "cuda").device()).isEqualTo(Device.CUDA);
        assertThat(config("m", "--device", "cuda:3").device()).isEqualTo(new Device(Device.Kind.CUDA, 3));
        for (String unknown : List.of("cuda:", "cuda:x", "cpu:1", "gpu")) {
            assertThatThrownBy(() -> config("m", "--device", unknown))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContainingAll("device", "auto, cpu, cuda, cuda:N");
        }
        assertThatThrownBy(() -> config("m", "-tp", "2", "--cpu-bind", "0"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("cpu_bind: has cores for 1 ranks");
    }

    @ParameterizedTest
    @CsvSource({
        "--tensor-parallel-size, 0, tensor_parallel_size",
        "-pp, -4, pipeline_parallel_size",
        "--cpu-bind, 1-, cpu_bind",
        "--device, tpu, device",
        "--dtype, int7, dtype",
        "'--quantization', 'int4', 'quantization: unsupported value ''int4''; allowed: none'",
        "'--kv-cache-dtype', 'fp8_e5m2', 'kv_cache_dtype: unsupported value ''fp8_e5m2''; allowed: auto'",
        "--block-size, 0, block_size",
        "--scheduling-policy, lifo, scheduling_policy"
    })
    void impossibleValuesNameTheFlag(String flag, String value, String field) {
        assertThatThrownBy(() -> config("m", flag, value))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(field)
                .hasMessageContaining(value);
    }

    @Test
    void aNonNumberIsReportedWithItsFlag() {
        assertThatThrownBy(() -> config("m", "--long-prefill-token-threshold", "-1"))
                .hasMessageContaining("--long-prefill-token-threshold")
                .hasMessageContaining("'-1' is not a number");
    }
}
