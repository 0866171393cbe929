package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineConfig;
import baton.engine.ParallelConfig;
import baton.engine.model.Device;
import baton.kv.ConfigException;
import baton.kv.DType;
import java.nio.file.Path;
import java.util.OptionalInt;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** vLLM's flags and what they become. */
class ServeCommandTest {
    private static EngineConfig config(String... flags) {
        ServeCommand serve = new ServeCommand();
        String[] arguments = Stream.concat(Stream.of("serve"), Stream.of(flags)).toArray(String[]::new);
        Baton.commandLine(serve).parseArgs(arguments);
        return serve.engineConfig();
    }

    @Test
    void defaultsAreTheEngines() {
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
    void everyFlagArrives() {
        EngineConfig config = config(
                "--model",
                "m",
                "--dtype",
                "float32",
                "--max-model-len",
                "1K",
                "--block-size",
                "32",
                "--max-num-seqs",
                "3",
                "--max-num-batched-tokens",
                "2k",
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
        assertThat(config.maxModelLen()).hasValue(1024);
        assertThat(config.blockSize()).isEqualTo(32);
        assertThat(config.maxNumSeqs()).isEqualTo(3);
        assertThat(config.maxNumBatchedTokens()).isEqualTo(2000);
        assertThat(config.enablePrefixCaching()).isFalse();
        assertThat(config.kvCacheBytes()).isEqualTo(1L << 29);
        assertThat(config.maxWaiting()).isEqualTo(7);
        assertThat(config.threads()).hasValue(2);
        assertThat(config.seed()).isEqualTo(9);
        assertThat(config("m", "--num-gpu-blocks-override", "50").numBlocks()).hasValue(50);
    }

    @Test
    void flagsThatVllmUsersHaveInTheirScriptsDoNotHurt() {
        EngineConfig config = config(
                "m",
                "--gpu-memory-utilization",
                "0.9",
                "--enforce-eager",
                "--trust-remote-code",
                "--enable-chunked-prefill",
                "--disable-log-requests",
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
        "--block-size, 0, block_size"
    })
    void whatCannotBeSaysWhichFlag(String flag, String value, String field) {
        assertThatThrownBy(() -> config("m", flag, value))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(field)
                .hasMessageContaining(value);
    }
}
