package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.cli.Instances.Instance;
import baton.cli.Program.Ended;
import baton.memory.Processor;
import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;

/** With kernels of machine code nothing of LibTorch is loaded, and its jars may be missing. */
class LibTorchTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @BeforeEach
    void kernelsOfMachineCode() {
        assumeTrue(Processor.current().has("avx2", "fma"), "the processor lacks one of avx2, fma");
    }

    /** An option of the JVM: its class path less LibTorch's jars. */
    private static String withoutJars() {
        List<String> command = Program.java();
        String path = command.get(command.indexOf("-cp") + 1);
        return "-Djava.class.path="
                + Arrays.stream(path.split(File.pathSeparator))
                        .filter(jar -> !Path.of(jar).getFileName().toString().matches("(pytorch|openblas|javacpp)-.*"))
                        .collect(Collectors.joining(File.pathSeparator));
    }

    @Test
    void anInstanceServesTheRightTokensWithoutItsJars() throws Exception {
        Instance instance = INSTANCES.serve("without-jars", withoutJars(), "--dtype", "float32", "--warmup");
        JsonNode golden = Instances.JSON.readTree(Files.readString(Instances.MODEL.resolve("golden.json")));
        JsonNode prompt = golden.path("prompts").path(0);
        int[] expected = Instances.ints(prompt.path("output_ids"));
        int steps = prompt.path("tokens_to_stop").asInt(expected.length);
        assertThat(instance.complete(Instances.ints(prompt.path("prompt_ids")), steps)
                        .tokenIds())
                .isEqualTo(Arrays.copyOf(expected, steps));
        assertThat(instance.log()).doesNotContain("LibTorch");
    }

    @Test
    void anInstanceDoesNotLoadItsLibraries() throws Exception {
        Instance instance = INSTANCES.serve("with-jars");
        assertThat(instance.complete(Ledgers.prompt(10, 1), 4).tokenIds()).hasSize(4);
        assertThat(Files.readString(Path.of("/proc", Long.toString(instance.pid()), "maps")))
                .contains("libjvm")
                .doesNotContain("torch")
                .doesNotContain("openblas");
    }

    @Test
    void kernelsOfLibTorchLoadItAndSaySo() throws Exception {
        Instance instance = INSTANCES.serve("libtorch", "-Dbaton.kernels=libtorch", "--dtype", "float32");
        assertThat(instance.complete(Ledgers.prompt(10, 1), 4).tokenIds()).hasSize(4);
        assertThat(Files.readString(Path.of("/proc", Long.toString(instance.pid()), "maps")))
                .contains("libtorch_cpu");
        assertThat(instance.log().lines())
                .filteredOn(line -> line.contains("LibTorch is loaded"))
                .singleElement()
                .asString()
                .endsWith("LibTorch is loaded: its kernels compute the model");
    }

    @Test
    void kernelsOfLibTorchNameTheJarsThatAreMissing() throws Exception {
        Ended ended = Program.run(
                List.of(withoutJars(), "-Dbaton.kernels=libtorch"),
                List.of("serve", Instances.MODEL.toString(), "--port", "0"));
        assertThat(ended.status()).isEqualTo(2);
        assertThat(ended.err())
                .contains(
                        "baton.kernels: is 'libtorch', but LibTorch's jars (pytorch, openblas, javacpp) are not on the class path");
    }

    @Test
    void wiresOfGlooNameTheJarThatIsMissing() throws Exception {
        Ended ended = Program.run(
                List.of(withoutJars()),
                List.of(
                        "serve",
                        Instances.MODEL.toString(),
                        "--port",
                        "0",
                        "--kv-allow-unauthenticated",
                        "--kv-transfer-config",
                        """
                        {"kv_connector": "PyNcclConnector", "kv_role": "kv_producer", "kv_rank": 0, "kv_parallel_size": 2,
                         "kv_connector_extra_config": {"transport": "gloo"}}\
                        """));
        assertThat(ended.status()).as(ended.err()).isEqualTo(2);
        assertThat(ended.err()).contains("is gloo, but LibTorch's Gloo cannot be loaded", "its jar for linux-x86_64");
    }

    @Test
    void theDoctorRunsWithoutItsJars() throws Exception {
        Ended ended = Program.run(List.of(withoutJars()), List.of("doctor", Instances.MODEL.toString()));
        assertThat(ended.status()).as(ended.out()).isZero();
        assertThat(ended.out())
                .containsPattern(
                        "LibTorch +not loaded, as the kernels that are chosen need none; LibTorch's jars .* are not");
    }
}
