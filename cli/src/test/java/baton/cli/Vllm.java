package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.FreePorts;
import baton.testkit.Await;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import tools.jackson.databind.node.ObjectNode;

/**
 * A real vLLM 0.32 for CPUs with NIXL, in blocks of 32 tokens. The environment variable {@code BATON_VLLM} names the Python
 * environment that it is installed in.
 */
final class Vllm implements AutoCloseable {
    static final String VARIABLE = "BATON_VLLM";
    static final int BLOCK = 32;

    /** The model's name in the hash of vLLM's handshakes. */
    static final String MODEL = "tiny-ledger";

    /**
     * The options of an instance.
     *
     * @param directory that the checkpoint's directory is in
     * @param model name of the checkpoint's directory, and of the model
     * @param dtype {@code float32}, {@code bfloat16} or {@code float16}
     * @param cpu core that it computes on
     * @param leaseSeconds {@code kv_lease_duration}
     */
    record Setup(Path directory, String model, String connector, String dtype, int cpu, int leaseSeconds) {
        /** tiny-ledger with {@code NixlConnector}. */
        static Setup of(String dtype) {
            return new Setup(Program.ROOT.resolve("models"), MODEL, "NixlConnector", dtype, 0, 30);
        }

        Setup leaseSeconds(int seconds) {
            return new Setup(directory, model, connector, dtype, cpu, seconds);
        }
    }

    private static final Duration START = Duration.ofMinutes(6);
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    private final InstalledProgram program;
    private final URI url;
    private final int sideChannel;
    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    private Vllm(InstalledProgram program, URI url, int sideChannel) {
        this.program = program;
        this.url = url;
        this.sideChannel = sideChannel;
    }

    /** The environment; skips the test, with the reason, where there is none. */
    static Path assumeInstalled() {
        Path environment = InstalledProgram.assumeInstalled(VARIABLE, "vllm")
                .resolve("../..")
                .normalize();
        assumeTrue(nixlLibrary(environment).isPresent(), () -> environment + " has no libnixl_capi.so of NIXL");
        return environment;
    }

    /** NIXL's C library in an environment. */
    static Optional<Path> nixlLibrary(Path environment) {
        try (Stream<Path> files =
                Files.find(environment.resolve("lib"), 6, (file, _) -> file.endsWith("libnixl_capi.so"))) {
            return files.findFirst();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Starts an instance; does not wait for it. It ends with this process, however that ends. */
    static Vllm start(Path environment, Path log, Setup setup) throws IOException {
        return start(environment, log, setup, Map.of());
    }

    /** @param variables of the environment, beside those that all have */
    static Vllm start(Path environment, Path log, Setup setup, Map<String, String> variables) throws IOException {
        int port = FreePorts.inARow(2);
        ObjectNode transfer = Instances.JSON.createObjectNode();
        transfer.put("kv_connector", setup.connector())
                .put("kv_role", "kv_both")
                .put("kv_buffer_device", "cpu")
                .put("kv_load_failure_policy", "recompute");
        transfer.putObject("kv_connector_extra_config").put("kv_lease_duration", setup.leaseSeconds());
        List<String> command = List.of(
                environment.resolve("bin/vllm").toString(),
                "serve",
                setup.model(),
                "--host",
                "127.0.0.1",
                "--port",
                Integer.toString(port),
                "--dtype",
                setup.dtype(),
                "--enforce-eager",
                "--max-model-len",
                "2048",
                "--block-size",
                Integer.toString(BLOCK),
                "--kv-transfer-config",
                transfer.toString());
        Map<String, String> all = new HashMap<>(Map.of(
                "PATH",
                environment.resolve("bin") + ":" + System.getenv("PATH"),
                "VLLM_CPU_KVCACHE_SPACE",
                "1",
                "HF_HUB_OFFLINE",
                "1",
                "VLLM_NO_USAGE_STATS",
                "1",
                "DO_NOT_TRACK",
                "1",
                "VLLM_CPU_OMP_THREADS_BIND",
                Integer.toString(setup.cpu()),
                "VLLM_NIXL_SIDE_CHANNEL_HOST",
                "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT",
                Integer.toString(port + 1)));
        all.putAll(variables);
        return new Vllm(
                InstalledProgram.start(log, setup.directory(), all, command),
                URI.create("http://127.0.0.1:" + port),
                port + 1);
    }

    URI url() {
        return url;
    }

    /** Its processes' numbers, added up: another sum shows that one was started anew. */
    long pids() {
        return program.pid()
                + program.descendants().mapToLong(ProcessHandle::pid).sum();
    }

    /** The port of its side channel. */
    int sideChannel() {
        return sideChannel;
    }

    /** Waits until it serves. */
    void awaitReady() throws Exception {
        program.await(START, () -> InstalledProgram.answers(url.resolve("/health")));
    }

    /** Its {@code vllm.__version__}. */
    String version() throws IOException, InterruptedException {
        return get("/version").json().path("version").asString();
    }

    Instances.Reply get(String path) throws IOException, InterruptedException {
        return send(request(path).build());
    }

    Instances.Reply post(String path, String body) throws IOException, InterruptedException {
        return send(posted(path, body).build());
    }

    private HttpRequest.Builder posted(String path, String body) {
        return request(path).header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body));
    }

    /** The sum of a metric's samples; fails if there is none. */
    double metric(String name) throws IOException, InterruptedException {
        double[] found = get("/metrics")
                .body()
                .lines()
                .filter(line -> line.startsWith(name + "{"))
                .mapToDouble(line -> Double.parseDouble(line.substring(line.lastIndexOf(' ') + 1)))
                .toArray();
        assertThat(found).as(name).isNotEmpty();
        return Arrays.stream(found).sum();
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(url.resolve(path)).timeout(DEADLINE);
    }

    private Instances.Reply send(HttpRequest request) throws IOException, InterruptedException {
        return Instances.Reply.of(http.send(request, HttpResponse.BodyHandlers.ofString()));
    }

    /** Waits until it holds no request and no block. */
    void awaitRest() throws Exception {
        Await.until(DEADLINE, () -> "vLLM still has requests or blocks\n" + tail(), () -> {
            String metrics = get("/metrics").body();
            return Stream.of("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting")
                    .allMatch(name -> metrics.lines()
                            .filter(line -> line.startsWith(name + "{"))
                            .allMatch(line -> line.endsWith(" 0.0")));
        });
    }

    String log() throws IOException {
        return program.log();
    }

    String tail() {
        return program.tail();
    }

    /** As {@code kill -9}, of all its processes. */
    void kill() throws InterruptedException {
        program.kill();
    }

    @Override
    public void close() throws IOException, InterruptedException {
        http.shutdownNow();
        http.close();
        program.close();
    }
}
