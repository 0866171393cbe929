package baton.dist;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.ObjectMapper;

/** The archive in a folder of its own, with neither Maven nor the repository. */
class ArchiveTest {
    private static final Duration DEADLINE = Duration.ofMinutes(3);
    private static final String READY = "Ready at ";
    private static final ObjectMapper JSON = new ObjectMapper();

    @TempDir
    private static Path directory;

    @BeforeAll
    static void unpack() throws Exception {
        assertThat(run(List.of("tar", "-xzf", System.getProperty("archive"), "-C", directory.toString())))
                .isEmpty();
    }

    private static Path home() throws IOException {
        try (Stream<Path> entries = Files.list(directory)) {
            return entries.filter(entry -> entry.getFileName().toString().startsWith("baton-"))
                    .findFirst()
                    .orElseThrow();
        }
    }

    /** A process that has nothing of this one's environment. */
    private static ProcessBuilder process(List<String> command) throws IOException {
        ProcessBuilder builder = new ProcessBuilder(command).directory(directory.toFile());
        builder.environment().clear();
        builder.environment()
                .putAll(Map.of(
                        "PATH",
                        "/usr/bin:/bin",
                        "HOME",
                        // Native libraries are unpacked into the user's own folder, once for all programs.
                        System.getProperty("user.home"),
                        "BATON_JAVA_HOME",
                        System.getProperty("java.home")));
        return builder;
    }

    private static String run(List<String> command) throws IOException, InterruptedException {
        Path said = Files.createTempFile(directory, "said", "");
        Process process = process(command)
                .redirectErrorStream(true)
                .redirectOutput(said.toFile())
                .start();
        try {
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            assertThat(process.exitValue()).as(Files.readString(said)).isZero();
            return Files.readString(said);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
    }

    @Test
    void theDemoHandsAPromptOver() throws Exception {
        assertThat(run(List.of(home().resolve("bin/baton").toString(), "demo"))).contains("ledger");
    }

    @Test
    void anInstanceAnswersAndEndsBySignal() throws Exception {
        List<String> command =
                new ArrayList<>(List.of(home().resolve("bin/baton").toString()));
        command.addAll(List.of("serve", "--port", "0"));
        Process process = process(command)
                .redirectError(directory.resolve("log").toFile())
                .start();
        try {
            URI instance = CompletableFuture.supplyAsync(() -> process.inputReader()
                            .lines()
                            .filter(line -> line.startsWith(READY))
                            .findFirst()
                            .orElseThrow())
                    .thenApply(line -> URI.create(line.substring(READY.length())))
                    .get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
            try (HttpClient client = HttpClient.newHttpClient()) {
                HttpResponse<String> answer = client.send(
                        HttpRequest.newBuilder(instance.resolve("/v1/completions"))
                                .timeout(DEADLINE)
                                .header("Content-Type", "application/json")
                                .POST(HttpRequest.BodyPublishers.ofString(
                                        "{\"model\": \"tiny-ledger\", \"prompt\": \"Once\", \"max_tokens\": 4}"))
                                .build(),
                        HttpResponse.BodyHandlers.ofString());
                assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
                assertThat(JSON.readTree(answer.body())
                                .at("/usage/completion_tokens")
                                .asInt())
                        .isPositive();
            }
            process.destroy();
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            assertThat(process.exitValue()).isZero();
        } finally {
            process.destroyForcibly();
        }
    }

    @Test
    void libTorchIsThereUnlessItWasLeftOut() throws Exception {
        boolean leftOut = System.getProperty("variant", "").equals("-without-libtorch");
        try (Stream<Path> jars = Files.list(home().resolve("lib"))) {
            assertThat(jars.map(jar -> jar.getFileName().toString())
                            .anyMatch(name -> name.matches("(pytorch|openblas|javacpp)-.*")))
                    .isEqualTo(!leftOut);
        }
        assertThat(run(List.of(home().resolve("bin/baton").toString(), "doctor"))
                        .contains("LibTorch's jars (pytorch, openblas, javacpp) are not on the class path"))
                .isEqualTo(leftOut);
    }

    @Test
    void theFirstStartTrainsTheAotCacheOnce() throws Exception {
        String doctor = home().resolve("bin/baton").toString();
        run(List.of(doctor, "--version"));
        JsonNode said = JSON.readTree(run(List.of(doctor, "doctor", "--json")));
        assertThat(said.path("software")
                        .valueStream()
                        .filter(each -> each.path("name").asString().equals("AOT cache"))
                        .map(each -> each.path("found").asString()))
                .singleElement()
                .satisfies(found -> assertThat(Path.of(found))
                        .startsWithRaw(home().resolve("lib"))
                        .isNotEmptyFile());
    }

    @Test
    void licencesOfAllJarsAreThere() throws Exception {
        String licences = Files.readString(home().resolve("licences/THIRD-PARTY.txt"));
        assertThat(licences)
                .contains("vertx-core", "pytorch", "jackson-databind")
                .doesNotContain("Unknown license");
    }

    @ParameterizedTest
    @ValueSource(strings = {"prefill", "decode", "router"})
    void unitFilesAreValid(String name) throws Exception {
        Optional<Path> analyzer = Stream.of("/usr/bin", "/bin")
                .map(place -> Path.of(place, "systemd-analyze"))
                .filter(Files::isExecutable)
                .findFirst();
        assumeTrue(analyzer.isPresent(), "there is no systemd-analyze in /usr/bin");
        Path unit = home().resolve("systemd").resolve("baton-" + name + ".service");
        // The program is not where the unit looks for it.
        Path here = Files.writeString(
                Files.createDirectories(directory.resolve("units")).resolve(unit.getFileName()),
                Files.readString(unit).replace("/opt/baton/bin", home() + "/bin"));
        assertThat(run(List.of(analyzer.get().toString(), "verify", "--man=no", here.toString()))
                        .lines())
                .noneMatch(line -> line.contains("baton-" + name));
        assertThat(Files.readString(home().resolve("etc").resolve(name + ".env")))
                .contains("BATON_ARGS=");
    }
}
