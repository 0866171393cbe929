package baton.image;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.ObjectMapper;

/**
 * The image's file system as a runtime of containers would set it up: namespaces of its own, a read-only root with a writable {@code /tmp},
 * the image's user, environment and entry point. Skipped where namespaces cannot be made.
 */
class ImageTest {
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final String READY = "Ready at ";
    private static final ObjectMapper JSON = new ObjectMapper();

    @TempDir
    private static Path directory;

    private static final List<Process> STARTED = new ArrayList<>();

    private static JsonNode config;

    @BeforeAll
    static void unpack() throws Exception {
        Path image = Files.createDirectory(directory.resolve("image"));
        Path root = Files.createDirectory(directory.resolve("root"));
        run("tar", "-xf", System.getProperty("image"), "-C", image.toString());
        JsonNode manifest =
                JSON.readTree(Files.readString(image.resolve("manifest.json"))).get(0);
        config = JSON.readTree(
                        Files.readString(image.resolve(manifest.path("Config").asString())))
                .path("config");
        for (JsonNode layer : manifest.path("Layers")) {
            run("tar", "-xf", image.resolve(layer.asString()).toString(), "-C", root.toString());
        }
        for (String directory : List.of("proc", "dev", "tmp")) {
            Files.createDirectories(root.resolve(directory));
        }
        System.out.printf("image: %d MiB, compressed%n", Files.size(Path.of(System.getProperty("image"))) >> 20);
        assumeTrue(
                exitOf(List.of("unshare", "--mount", "--pid", "--fork", "true")) == 0,
                "no namespaces can be made, which takes root: unshare --mount --pid --fork true fails");
    }

    @AfterAll
    static void stop() throws Exception {
        for (Process process : STARTED) {
            // The program in the namespace first: that its user changes takes the signal away that unshare asked for.
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
        }
    }

    private static void run(String... command) throws IOException, InterruptedException {
        assertThat(exitOf(List.of(command))).as("%s", List.of(command)).isZero();
    }

    private static int exitOf(List<String> command) throws IOException, InterruptedException {
        try {
            Process process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            assertThat(process.waitFor(DEADLINE)).as("ended in time").isTrue();
            return process.exitValue();
        } catch (IOException e) {
            // There is no such program.
            return 127;
        }
    }

    /** A container of the image; its network is this process's. */
    private static Process container(String log, String... arguments) throws IOException {
        List<String> all = new ArrayList<>();
        config.path("Entrypoint").forEach(part -> all.add(part.asString()));
        all.addAll(List.of(arguments));
        return contained(log, all);
    }

    private static Process contained(String log, List<String> program) throws IOException {
        List<String> command = new ArrayList<>(List.of(
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-euc",
                """
                root=$1 user=$2; shift 2
                mount --make-rprivate /
                mount --bind "$root" "$root"
                mount --rbind /dev "$root/dev"
                mount -t proc proc "$root/proc"
                mount -o remount,ro,bind "$root"
                mount -t tmpfs tmpfs "$root/tmp"
                chmod 1777 "$root/tmp"
                exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
                """,
                "container",
                directory.resolve("root").toString(),
                config.path("User").asString()));
        command.addAll(program);
        ProcessBuilder builder =
                new ProcessBuilder(command).redirectError(directory.resolve(log).toFile());
        builder.environment().clear();
        builder.environment().put("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        for (JsonNode variable : config.path("Env")) {
            String[] parts = variable.asString().split("=", 2);
            builder.environment().put(parts[0], parts[1]);
        }
        Process process = builder.start();
        STARTED.add(process);
        return process;
    }

    private static URI ready(Process process, String log) throws Exception {
        try {
            return CompletableFuture.supplyAsync(() -> process.inputReader()
                            .lines()
                            .filter(line -> line.startsWith(READY))
                            .findFirst()
                            .orElseThrow())
                    .thenApply(line -> URI.create(line.substring(READY.length())))
                    .get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw new AssertionError(Files.readString(directory.resolve(log)), e);
        }
    }

    @Test
    void prefillDecodeAndRouterHandAPromptOver() throws Exception {
        String transfer = "--kv-transfer-config={\"kv_connector\": \"NixlConnector\", \"kv_role\": \"%s\","
                + " \"kv_connector_extra_config\": {\"side_channel_port\": 0, \"transport\": \"tcp\"}}";
        URI prefill = ready(container("prefill", "serve", "--port=0", "--threads=1", transfer.formatted("kv_producer")), "prefill");
        URI decode = ready(container("decode", "serve", "--port=0", "--threads=1", transfer.formatted("kv_consumer")), "decode");
        URI router = ready(
                container(
                        "router",
                        "route",
                        "--port=0",
                        "--prefill=" + prefill,
                        "--decode=" + decode,
                        "--flow=kv_transfer_params_push"),
                "router");
        try (HttpClient client = HttpClient.newHttpClient()) {
            for (URI each : List.of(prefill, decode, router)) {
                assertThat(get(client, each.resolve("/health")).statusCode()).isEqualTo(200);
            }
            HttpResponse<String> answer = client.send(
                    HttpRequest.newBuilder(router.resolve("/v1/completions"))
                            .timeout(DEADLINE)
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofString(
                                    "{\"model\": \"tiny-ledger\", \"prompt\": \"%s\", \"max_tokens\": 4}"
                                            .formatted("Once upon a time ".repeat(20))))
                            .build(),
                    HttpResponse.BodyHandlers.ofString());
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            assertThat(get(client, decode.resolve("/metrics")).body().lines())
                    .anySatisfy(line -> assertThat(line)
                            .startsWith("vllm:prompt_tokens_by_source_total")
                            .contains("external_kv_transfer")
                            .doesNotEndWith(" 0.0"));
        }
    }

    private static HttpResponse<String> get(HttpClient client, URI uri) throws IOException, InterruptedException {
        return client.send(HttpRequest.newBuilder(uri).timeout(DEADLINE).build(), HttpResponse.BodyHandlers.ofString());
    }

    /** Also says that nothing is unpacked and that the AOT cache is the image's. */
    @Test
    void theImageHasItsLabels() throws Exception {
        Process doctor = container("doctor", "doctor", "--json");
        String said = new String(doctor.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertThat(doctor.waitFor(DEADLINE)).as("ended in time").isTrue();
        assertThat(doctor.exitValue())
                .as(said + Files.readString(directory.resolve("doctor")))
                .isZero();
        assertThat(said).contains("/opt/baton/baton.aot", "/opt/java");
        assertThat(said.contains("LibTorch's jars (pytorch, openblas, javacpp) are not on the class path"))
                .isEqualTo(System.getProperty("variant", "").equals("-without-libtorch"));
        assertThat(config.path("User").asString()).isEqualTo("10001:10001");
    }

    /** Asked to insist on its AOT cache, a JVM that cannot use it does not start. */
    @Test
    void theAotCacheBelongsToTheImage() throws Exception {
        List<String> command = new ArrayList<>();
        config.path("Entrypoint").forEach(part -> command.add(part.asString()));
        command.add(1, "-XX:AOTMode=on");
        command.add("--version");
        Process version = contained("version", command);
        assertThat(version.waitFor(DEADLINE)).as("ended in time").isTrue();
        assertThat(version.exitValue())
                .as(Files.readString(directory.resolve("version")))
                .isZero();
    }
}
