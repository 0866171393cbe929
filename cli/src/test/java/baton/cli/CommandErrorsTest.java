package baton.cli;

import static org.assertj.core.api.Assertions.as;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.InstanceOfAssertFactories.STRING;

import baton.cli.Program.Ended;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** A command that cannot work prints one line and exits with an error. */
class CommandErrorsTest {
    @TempDir
    private Path directory;

    private static Ended run(String... arguments) throws IOException, InterruptedException {
        return Program.run(List.of(arguments));
    }

    /** The same within this process, for errors before anything begins. */
    private static Ended refusal(String... arguments) {
        return Program.inThisProcess(arguments);
    }

    /** The errors in its output, without other log lines. */
    private static List<String> complaints(Ended ended) {
        return ended.err()
                .lines()
                .filter(line -> !line.matches("\\d\\d:\\d\\d:\\d\\d\\.\\d+ INFO .*"))
                .filter(line -> !line.contains("The load average is"))
                .toList();
    }

    static Stream<Arguments> wrongOptions() {
        return Stream.of(
                Arguments.of(
                        List.of("--kv-transfer-config.kv_connector", "Foo", "--kv-transfer-config.kv_role", "kv_both"),
                        List.of("kv_connector", "Foo", "SharedStorageConnector")),
                Arguments.of(
                        List.of(
                                "--kv-transfer-config",
                                "{\"kv_connector\": \"SharedStorageConnector\", \"kv_role\": \"kv_bot\"}"),
                        List.of("kv_role", "kv_bot", "kv_producer", "kv_consumer", "kv_both")),
                Arguments.of(
                        List.of("--kv-transfer-config", "{\"kv_conector\": \"SharedStorageConnector\"}"),
                        List.of("kv_conector", "kv_connector")),
                Arguments.of(
                        List.of("--kv-transfer-config", "{\"kv_connector\": "),
                        List.of("--kv-transfer-config", "not valid JSON")),
                Arguments.of(List.of("--dtype", "float13"), List.of("dtype", "float13", "bfloat16", "float32")),
                Arguments.of(List.of("--max-model-len", "4k"), List.of("max_model_len", "4000", "2048")),
                Arguments.of(List.of("--port", "99999"), List.of("port", "99999", "65535")),
                Arguments.of(List.of("--block-size", "0"), List.of("block_size", "0", "positive")));
    }

    @ParameterizedTest
    @MethodSource("wrongOptions")
    void wrongOptions(List<String> options, List<String> named) {
        List<String> arguments = new ArrayList<>(List.of("serve", Instances.MODEL.toString()));
        if (!options.contains("--port")) {
            arguments.addAll(List.of("--port", "0"));
        }
        arguments.addAll(options);
        assertRefused(refusal(arguments.toArray(String[]::new)), 2, named);
    }

    @Test
    void unknownOption() throws Exception {
        Ended ended = refusal("serve", Instances.MODEL.toString(), "--max-modle-len", "17");
        assertThat(ended.status()).isEqualTo(2);
        assertThat(ended.err()).contains("--max-modle-len").contains("--max-model-len");
        assertThat(ended.err().lines()).hasSizeLessThan(6);
    }

    @Test
    void noCheckpoint() throws Exception {
        assertRefused(run("serve", directory.resolve("gone").toString()), 2, List.of("model", "gone"));
        assertRefused(run("serve", directory.toString()), 2, List.of("config.json", "missing"));
    }

    @Test
    void corruptCheckpoint() throws Exception {
        copyModel();
        Path weights = directory.resolve("model.safetensors");
        byte[] bytes = Files.readAllBytes(weights);
        Files.write(weights, Arrays.copyOf(bytes, bytes.length / 2));
        assertRefused(run("serve", directory.toString()), 1, List.of("model.safetensors", "truncated"));
        Files.write(weights, "nonsense that is no header".getBytes(StandardCharsets.UTF_8));
        assertRefused(run("serve", directory.toString()), 1, List.of("model.safetensors"));
        Files.writeString(directory.resolve("config.json"), "{\"hidden_size\": ");
        assertRefused(run("serve", directory.toString()), 2, List.of("config.json", "not valid JSON"));
    }

    @Test
    void moreMemoryThanThereIs() throws Exception {
        assertRefused(
                run("serve", Instances.MODEL.toString(), "--port", "0", "--kv-cache-memory-bytes", "900T"),
                2,
                List.of("kv_cache_memory_bytes", "KV blocks", "MiB of memory for this process", "give less"));
        assertRefused(
                run("serve", Instances.MODEL.toString(), "--port", "0", "--num-gpu-blocks-override", "2147483647"),
                2,
                List.of("num_gpu_blocks_override", "2147483647 KV blocks", "give less"));
        assertRefused(
                Program.run(List.of("-Xmx10m"), List.of("serve", Instances.MODEL.toString())),
                1,
                List.of("-Xmx", "must allow at least 32 MiB"));
        Ended huge = run("kv-server", "--memory", "99999999999999999999");
        assertThat(huge.status()).isEqualTo(2);
        assertThat(huge.err())
                .contains("--memory", "is too large: at most 1024T")
                .doesNotContain("\tat ");
    }

    @Test
    void corruptTokenizer() throws Exception {
        copyModel();
        Files.writeString(directory.resolve("tokenizer.json"), "{}");
        Ended ended = run("serve", directory.toString());
        assertRefused(ended, ended.status() == 1 ? 1 : 2, List.of("tokenizer.json"));
    }

    @Test
    void roundsOfFirstRequestsThatCannotBeMade() throws Exception {
        assertRefused(refusal("bench", "first-token", "--rounds", "0"), 2, List.of("rounds", "is 0", "at least 1"));
        assertRefused(
                refusal("bench", "first-token", "--rounds", "2", "--requests", "1"),
                2,
                List.of("requests", "is 1", "at least 2"));
        assertRefused(
                refusal("bench", "first-token", "--rounds", "2", "--url", "http://127.0.0.1:1"),
                2,
                List.of("rounds", "is 2", "must be 1 with --url"));
    }

    /** Told before the model is looked at, which may take minutes: here there is none. */
    @Test
    void occupiedPort() throws Exception {
        try (ServerSocket other = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            String port = Integer.toString(other.getLocalPort());
            String noModel = directory.resolve("gone").toString();
            assertRefused(refusal("serve", noModel, "--port", port), 2, List.of("port", port, "in use"));
            assertRefused(refusal("up", noModel, "--port", port), 2, List.of("port", port, "in use"));
            assertRefused(
                    refusal(
                            "route",
                            "--port",
                            "0",
                            "--register-port",
                            port,
                            "--prefill",
                            "http://127.0.0.1:1",
                            "--decode",
                            "http://127.0.0.1:2"),
                    2,
                    List.of("register port", port, "in use"));
            assertRefused(
                    refusal(
                            "route",
                            "--port",
                            port,
                            "--prefill",
                            "http://127.0.0.1:1",
                            "--decode",
                            "http://127.0.0.1:2"),
                    2,
                    List.of("port", port, "in use"));
        }
    }

    @Test
    void addressesThatCannotBeListenedOn() {
        String noModel = directory.resolve("gone").toString();
        assertRefused(refusal("up", noModel, "--port", "70000"), 2, List.of("port", "70000", "65535"));
        // Of the block for documentation, so no machine's.
        assertRefused(
                refusal("serve", noModel, "--port", "0", "--host", "203.0.113.7"),
                2,
                List.of("host", "203.0.113.7", "cannot be listened on"));
        assertRefused(
                refusal(
                        "route",
                        "--host",
                        "203.0.113.7",
                        "--prefill",
                        "http://127.0.0.1:1",
                        "--decode",
                        "http://127.0.0.1:2"),
                2,
                List.of("host", "203.0.113.7", "cannot be listened on"));
    }

    /** Each error comes before the model is read. */
    @Test
    void connectorsThatCannotWork() throws Exception {
        Path file = Files.createFile(directory.resolve("file"));
        List<String> misspelt =
                serveWith("ExampleConnector", "kv_producer", Map.of("shared_storage_pth", "/tmp", "foo", "1"));
        assertThat(misspelt).hasSize(2);
        assertThat(misspelt.getFirst())
                .contains("WARN")
                .contains("[foo, shared_storage_pth] mean nothing to ExampleConnector")
                .contains("shared_storage_path");
        assertThat(misspelt.getLast()).startsWith("baton: ").contains("gone");
        assertThat(serveWith(
                        "SharedStorageConnector",
                        "kv_producer",
                        Map.of("shared_storage_path", file.resolve("kv").toString())))
                .singleElement(as(STRING))
                .contains(
                        "kv_connector_extra_config.shared_storage_path",
                        file.resolve("kv").toString(),
                        "cannot be written to");
        assertThat(serveWith("P2pNcclConnector", "kv_producer", Map.of("proxy_ip", "127.0.0.1", "http_port", "8000")))
                .singleElement(as(STRING))
                .contains("kv_connector_extra_config.proxy_port", "is missing", "127.0.0.1");
    }

    private List<String> serveWith(String connector, String role, Map<String, String> settings)
            throws IOException, InterruptedException {
        List<String> arguments = new ArrayList<>(List.of(
                "serve",
                directory.resolve("gone").toString(),
                "--port",
                "0",
                "--kv-transfer-config.kv_connector",
                connector,
                "--kv-transfer-config.kv_role",
                role));
        settings.forEach((name, value) ->
                arguments.addAll(List.of("--kv-transfer-config.kv_connector_extra_config." + name, value)));
        Ended ended = Program.run(arguments);
        assertThat(ended.status()).as(ended.err()).isEqualTo(2);
        return complaints(ended);
    }

    @ParameterizedTest
    @CsvSource({
        "route --slow-start NaN, --slow-start, is NaN",
        "route --register-ttl NaN, --register-ttl, is NaN",
        "route --slow-start Infinity, --slow-start, is Infinity",
        "bench store --values -1, --values, is -1",
        "bench store --lookups -1, --lookups, is -1",
        "bench store --seconds NaN, --seconds, is NaN",
        "bench engine --threads -1, --threads, is -1",
        "bench engine --budget -2, --budget, is -2",
        "bench router --rounds -1, --rounds, is -1"
    })
    void numbersThatNoOptionCanHave(String call, String option, String value) throws Exception {
        assertRefused(refusal(call.split(" ")), 2, List.of(option, value, "must be a number"));
    }

    @Test
    void measurementsThatCannotBegin() {
        assertRefused(refusal("bench", "gpu", "--simulated"), 2, List.of("simulated", "needs --tests"));
        assertRefused(refusal("doctor", "--leak", "localhost:8000"), 2, List.of("leak", "'localhost:8000'"));
    }

    @Test
    void routersThatCannotWork() {
        assertRefused(refusal("route", "--port", "0"), 2, List.of("prefill", "at least one instance", "register port"));
        assertRefused(
                refusal("route", "--port", "0", "--register-port", "0", "--register-allow", "everybody"),
                2,
                List.of("register allow", "everybody", "10.1.0.0/16"));
        for (String seconds : List.of("-1", "0", "1e20")) {
            assertRefused(
                    refusal(
                            "route",
                            "--register-ttl",
                            seconds,
                            "--prefill",
                            "http://127.0.0.1:1",
                            "--decode",
                            "http://127.0.0.1:2"),
                    2,
                    List.of("register ttl", "1 ms to 86400 s"));
        }
        assertRefused(
                refusal(
                        "route",
                        "--shutdown-timeout",
                        "0",
                        "--prefill",
                        "http://127.0.0.1:1",
                        "--decode",
                        "http://127.0.0.1:2"),
                2,
                List.of("shutdown_timeout", "is 0", "at least 1"));
    }

    private void copyModel() throws IOException {
        try (Stream<Path> files = Files.list(Instances.MODEL)) {
            for (Path file : files.toList()) {
                Files.copy(file, directory.resolve(file.getFileName()));
            }
        }
    }

    private static void assertRefused(Ended ended, int status, List<String> named) {
        assertThat(complaints(ended)).as(ended.err()).hasSize(1);
        assertThat(complaints(ended).getFirst())
                .startsWith("baton: ")
                .contains(named)
                .doesNotContain("Exception:", "REDACTED");
        assertThat(ended.status()).isEqualTo(status);
        assertThat(ended.out()).isEmpty();
    }
}
