package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.cli.Instances.Instance;
import baton.cli.Program.Ended;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton bench engine --against}: another Baton, and servers that do not work. */
class BenchAgainstTest {
    private static final int POSITIONS = 400;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Ended bench(String... options) throws IOException, InterruptedException {
        return Program.run(Stream.concat(Stream.of("bench", "engine", "--threads", "1"), Stream.of(options))
                .toList());
    }

    /** The embedded model with fewer positions, so that prompts are short. */
    private static Path shortModel() throws IOException {
        Path directory = INSTANCES.directory("short");
        try (Stream<Path> files = Files.list(Instances.MODEL)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                Files.copy(file, directory.resolve(file.getFileName()), StandardCopyOption.REPLACE_EXISTING);
            }
        }
        Path config = directory.resolve("config.json");
        ObjectNode fields = (ObjectNode) Instances.JSON.readTree(Files.readString(config));
        Files.writeString(
                config, fields.put("max_position_embeddings", POSITIONS).toString());
        return directory;
    }

    @Tag("thorough")
    @Test
    void anotherServerIsMeasuredInTheSameRun() throws Exception {
        Path model = shortModel();
        Instance other = INSTANCES.serve("other");
        Path json = INSTANCES.directory("json").resolve("figures.json");
        Ended ended = bench(
                "--model",
                model.toString(),
                "--against",
                other.url().toString(),
                "--budget",
                "80",
                "--seconds",
                "0.05",
                "--json",
                json.toString());

        assertThat(ended.status()).as(ended.err()).isZero();
        assertThat(ended.out())
                .contains(
                        "Against " + other.url() + " (tiny-ledger)",
                        "prompts as token ids",
                        "prefill 399",
                        "decode batch 8",
                        "through the engine");
        List<String> lastLines = ended.out().lines().toList().reversed();
        assertThat(lastLines.getFirst())
                .startsWith("left out: against ")
                .contains("prefill 2048", "max_position_embeddings=400");
        assertThat(lastLines.get(1)).contains("prefill 512", "max_position_embeddings=400", "of 399 instead");
        assertThat(lastLines).anyMatch(line -> line.startsWith("left out: short: prefill 2048: "));
        JsonNode figures = Instances.JSON.readTree(Files.readString(json));
        assertThat(figures.at("/models/0/name").asString()).isEqualTo("short");
        JsonNode cases = figures.at("/against/cases");
        List<String> names = new ArrayList<>();
        for (JsonNode each : cases) {
            names.add(each.path("case").asString() + " " + each.path("count").asInt());
            assertThat(each.path("ratio").asDouble())
                    .as(each.toString())
                    .isCloseTo(
                            each.at("/baton/tokens_per_second").asDouble()
                                    / each.at("/other/tokens_per_second").asDouble(),
                            within(1e-6));
            assertThat(each.at("/baton/repetitions").asInt()).isPositive();
        }
        assertThat(names).containsExactly("prefill 128", "prefill 399", "decode 1", "decode 8");
        assertThat(cases.at("/1/other/tokens").asInt()).isEqualTo(399);
    }

    @Test
    void aServerThatFailsIsNamedBeforeAnythingIsMeasured() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            String url = "http://127.0.0.1:" + server.getLocalPort();
            Thread answering = Thread.ofPlatform().start(() -> {
                try (var socket = server.accept()) {
                    byte[] answer = "HTTP/1.1 500 Oh\r\nContent-Length: 12\r\nConnection: close\r\n\r\nout of order"
                            .getBytes(StandardCharsets.UTF_8);
                    int unusedFirst = socket.getInputStream().read();
                    socket.getOutputStream().write(answer);
                } catch (IOException e) {
                    // The program then reports a broken connection, and the test fails.
                }
            });
            Ended ended = bench("--against", url);
            answering.join(Instances.DEADLINE);
            assertThat(ended.err().lines().toList())
                    .containsExactly("baton: " + url + "/v1/models answered 500: out of order");
            assertThat(ended.status()).isEqualTo(1);

            // It listens and never accepts.
            ended = bench("--against", url, "--budget", "4");
            assertThat(ended.err().lines().toList())
                    .singleElement()
                    .asString()
                    .matches("baton: " + url + "/v1/models has not answered within [12]\\.\\d s: nothing came");
            assertThat(ended.status()).isEqualTo(1);
        }
    }

    @Test
    void conflictingOptionsAreNamed() throws Exception {
        String model = Instances.MODEL.toString();
        Ended ended = bench("--against", "http://127.0.0.1:1", "--model", model, "--model", model);
        assertThat(ended.err()).startsWith("baton: against: compares one model, --model is given 2 times");
        assertThat(ended.status()).isEqualTo(2);
        ended = bench("--against", "127.0.0.1:8000");
        assertThat(ended.err()).startsWith("baton: against: is '127.0.0.1:8000', must be a server's URL");
        assertThat(ended.status()).isEqualTo(2);
        ended = bench("--budget", "0");
        assertThat(ended.err()).startsWith("baton: budget: is 0.0 s, must be positive");
        assertThat(ended.status()).isEqualTo(2);
    }
}
