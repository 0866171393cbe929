package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cluster.ServerProcess;
import baton.kv.FreePorts;
import baton.testkit.Await;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Servers and routers as processes of their own, for the tests of one class. After every test each server that is alive must
 * come to rest: no request, no KV block in use. After a failed test the ends of their logs are printed. All of them end with the
 * class, and with this process if that ends first.
 */
final class Instances implements AfterEachCallback, AfterAllCallback {
    static final Path MODEL = Program.ROOT.resolve("models", "tiny-ledger");
    static final JsonMapper JSON = JsonMapper.builder().build();
    static final Duration DEADLINE = Duration.ofMinutes(2);

    private static final int LOG_TAIL_LINES = 40;

    private final Path directory;
    private final List<Instance> all = new ArrayList<>();
    private final Set<Integer> ports = new HashSet<>();
    private final HttpClient http = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(DEADLINE)
            .build();
    private final ApiClient metrics = new ApiClient();

    Instances() {
        try {
            directory = Files.createTempDirectory("baton-test-");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** A directory of the tests' own; gone after the last one. */
    Path directory(String name) throws IOException {
        return Files.createDirectories(directory.resolve(name));
    }

    /**
     * Starts a server of the tiny model on a free port, which does not warm up unless told to; does not wait for it. Options that begin
     * with {@code -D}, {@code -XX} or {@code --class-path=} are its JVM's.
     */
    Instance serve(String name, String... options) throws IOException {
        return serve(name, MODEL, "64M", options);
    }

    /** The same of a model, with memory for its KV cache. */
    Instance serve(String name, Path model, String kvCacheBytes, String... options) throws IOException {
        List<String> arguments = new ArrayList<>(
                List.of("serve", model.toString(), "--threads", "1", "--kv-cache-memory-bytes", kvCacheBytes));
        arguments.addAll(List.of(options));
        if (!arguments.contains("--port")) {
            arguments.addAll(List.of("--port", freePort()));
        }
        return start(name, withoutWarmUp(arguments));
    }

    /** One that no connection takes while a process is down. */
    private String freePort() throws IOException {
        int port;
        do {
            port = FreePorts.inARow(1);
        } while (!ports.add(port));
        return Integer.toString(port);
    }

    private static List<String> withoutWarmUp(List<String> arguments) {
        if (!arguments.contains("--warmup")) {
            arguments.add("--no-warmup");
        }
        return arguments;
    }

    /** Starts a server that hands over through {@code shared}; does not wait for it. */
    Instance serve(String name, String role, Path shared, String... options) throws IOException {
        List<String> all = new ArrayList<>(List.of(options));
        all.addAll(List.of(
                "--kv-transfer-config.kv_connector",
                "SharedStorageConnector",
                "--kv-transfer-config.kv_role",
                role,
                "--kv-transfer-config.kv_connector_extra_config.shared_storage_path",
                shared.toString()));
        return serve(name, all.toArray(String[]::new));
    }

    /**
     * Starts a server that moves blocks from memory to memory, and gives the same answers wherever a prompt was computed; does not wait for
     * it.
     *
     * @param connector {@code NixlConnector} or {@code NixlPushConnector}
     */
    Instance serveBlocks(String name, String connector, String role, String... options) throws IOException {
        return serveBlocks(name, MODEL, "64M", connector, role, options);
    }

    /** The same of a model, with memory for its KV cache. */
    Instance serveBlocks(String name, Path model, String kvCacheBytes, String connector, String role, String... options)
            throws IOException {
        String transfer = "--kv-transfer-config.";
        List<String> all = new ArrayList<>(List.of(
                "--dtype",
                "float32",
                transfer + "kv_connector",
                connector,
                transfer + "kv_role",
                role,
                transfer + "kv_load_failure_policy",
                "recompute",
                transfer + "kv_connector_extra_config.side_channel_host",
                "127.0.0.1",
                transfer + "kv_connector_extra_config.side_channel_port",
                "0"));
        all.addAll(List.of(options));
        return serve(name, model, kvCacheBytes, all.toArray(String[]::new));
    }

    /** Starts a router in front of these, once they are ready; does not wait for it. */
    Instance route(String name, List<Instance> prefills, List<Instance> decodes, String... options)
            throws IOException, InterruptedException {
        List<String> arguments = new ArrayList<>(List.of("route", "--port", freePort()));
        for (Instance prefill : prefills) {
            arguments.addAll(List.of("--prefill", prefill.url().toString()));
        }
        for (Instance decode : decodes) {
            arguments.addAll(List.of("--decode", decode.url().toString()));
        }
        arguments.addAll(List.of(options));
        return start(name, withoutWarmUp(arguments));
    }

    /** Starts a kv-server with so much memory; does not wait for it. */
    Instance kvServer(String name, String memory) throws IOException {
        return start(name, List.of("kv-server", "--port", freePort(), "--memory", memory));
    }

    private Instance start(String name, List<String> arguments) throws IOException {
        Instance instance = new Instance(name, arguments, directory.resolve(name + ".log"));
        all.add(instance);
        return instance;
    }

    @Override
    public void afterEach(ExtensionContext context) throws Exception {
        try {
            if (context.getExecutionException().isEmpty()) {
                for (Instance instance : all) {
                    if (instance.serves() && instance.isAlive()) {
                        instance.awaitRest();
                    }
                }
            }
        } catch (AssertionError | Exception e) {
            printLogs();
            throw e;
        }
        if (context.getExecutionException().isPresent()) {
            printLogs();
        }
    }

    private void printLogs() {
        all.forEach(instance -> System.err.println(instance.logTail()));
    }

    @Override
    public void afterAll(ExtensionContext context) throws Exception {
        for (Instance instance : all) {
            instance.server.process().askToStop();
        }
        for (Instance instance : all) {
            instance.server.process().awaitEnd(DEADLINE);
        }
        http.shutdownNow();
        http.close();
        metrics.close();
        try (Stream<Path> files = Files.walk(directory)) {
            files.sorted(Comparator.reverseOrder())
                    .forEach(file -> file.toFile().delete());
        }
    }

    /** An answer. */
    record Reply(int status, String body, HttpResponse<?> response) {
        static Reply of(HttpResponse<String> response) {
            return new Reply(response.statusCode(), response.body(), response);
        }

        JsonNode json() {
            return JSON.readTree(body);
        }

        /** The answer's first choice, if this is an answer. */
        JsonNode choice() {
            assertThat(status).as(body).isEqualTo(200);
            return json().path("choices").path(0);
        }

        int[] tokenIds() {
            return ints(choice().path("token_ids"));
        }

        int cachedTokens() {
            return json().path("usage")
                    .path("prompt_tokens_details")
                    .path("cached_tokens")
                    .asInt(0);
        }

        String error() {
            return json().path("error").path("message").asString();
        }
    }

    static int[] ints(JsonNode array) {
        return array.valueStream().mapToInt(JsonNode::asInt).toArray();
    }

    /** A greedy completion's body. */
    static ObjectNode greedy(int[] prompt, int maxTokens) {
        ObjectNode body = JSON.createObjectNode();
        body.set("prompt", JSON.valueToTree(prompt));
        return body.put("max_tokens", maxTokens).put("temperature", 0).put("return_token_ids", true);
    }

    /** @param signal as {@code kill} takes it, such as {@code -STOP} */
    static void signal(long pid, String signal) throws IOException, InterruptedException {
        Process kill = new ProcessBuilder("kill", signal, Long.toString(pid)).start();
        assertThat(kill.waitFor(DEADLINE)).isTrue();
        assertThat(kill.exitValue()).isZero();
    }

    /**
     * Posts to a server of any class.
     *
     * @param headers names and values by turns
     */
    Reply post(URI server, String path, String body, String... headers) throws IOException, InterruptedException {
        HttpRequest.Builder request = request(server, path)
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body));
        return send((headers.length == 0 ? request : request.headers(headers)).build());
    }

    private Reply send(HttpRequest request) throws IOException, InterruptedException {
        return Reply.of(http.send(request, BodyHandlers.ofString()));
    }

    private static HttpRequest.Builder request(URI server, String path) {
        return HttpRequest.newBuilder(server.resolve(path)).timeout(DEADLINE);
    }

    /** One process. */
    final class Instance {
        private final String name;
        private final List<String> arguments;
        private final Path log;
        private ServerProcess server;

        private Instance(String name, List<String> arguments, Path log) throws IOException {
            this.name = name;
            this.arguments = arguments;
            this.log = log;
            this.server = launch();
        }

        private ServerProcess launch() throws IOException {
            Map<Boolean, List<String>> options =
                    arguments.stream().collect(Collectors.partitioningBy(Instance::isOfTheJvm));
            return ServerProcess.start(
                    name,
                    Program.command().withOptions(options.getOrDefault(true, List.of())),
                    options.getOrDefault(false, List.of()),
                    log);
        }

        private static boolean isOfTheJvm(String argument) {
            return argument.startsWith("-D") || argument.startsWith("-XX") || argument.startsWith("--class-path=");
        }

        /** The server's URL; waits until it is ready. */
        URI url() throws InterruptedException {
            try {
                return server.awaitReady(DEADLINE);
            } catch (IOException e) {
                throw new AssertionError("not ready\n" + logTail(), e);
            }
        }

        /** The address for registrations of a router that accepts them; waits until it is known. */
        URI registrations() throws IOException, InterruptedException {
            return server.awaitRegistrations(DEADLINE);
        }

        boolean isAlive() {
            return server.process().isAlive();
        }

        private boolean serves() {
            return arguments.getFirst().equals("serve");
        }

        /** As {@code kill -9}. */
        void kill() throws InterruptedException {
            server.process().kill();
            assertThat(server.process().awaitExit(DEADLINE)).isPresent();
        }

        /** Sends SIGTERM and, unlike {@link Process#destroy()}, keeps its standard input open, at the end of which it would stop as well. */
        void terminate() throws IOException, InterruptedException {
            signal("-TERM");
        }

        /** Waits for the process's end; its exit status. */
        int awaitExit() throws InterruptedException {
            OptionalInt status = server.process().awaitExit(DEADLINE);
            assertThat(status).as("ended in time").isPresent();
            return status.getAsInt();
        }

        /** Stops it as SIGSTOP does: it keeps its connections and does nothing until it is killed. */
        void freeze() throws IOException, InterruptedException {
            signal("-STOP");
        }

        /** Lets it go on after {@link #freeze}. */
        void thaw() throws IOException, InterruptedException {
            signal("-CONT");
        }

        long pid() {
            return server.process().pid();
        }

        private void signal(String signal) throws IOException, InterruptedException {
            Instances.signal(pid(), signal);
        }

        /** Starts it once more, on the port that it had. */
        void restart() throws IOException, InterruptedException {
            assertThat(isAlive()).isFalse();
            server = launch();
        }

        HttpRequest.Builder request(String path) throws InterruptedException {
            return Instances.request(url(), path);
        }

        Reply get(String path) throws IOException, InterruptedException {
            return send(request(path).build());
        }

        /** @param headers names and values by turns */
        Reply post(String path, String body, String... headers) throws IOException, InterruptedException {
            return Instances.this.post(url(), path, body, headers);
        }

        Reply complete(int[] prompt, int maxTokens) throws IOException, InterruptedException {
            return post("/v1/completions", greedy(prompt, maxTokens).toString());
        }

        /** The lines of a streamed answer as they come. */
        HttpResponse<InputStream> stream(String path, ObjectNode body) throws IOException, InterruptedException {
            return http.send(
                    request(path)
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofString(
                                    body.put("stream", true).toString()))
                            .build(),
                    BodyHandlers.ofInputStream());
        }

        /** Sends a request and does not wait; cancelling closes its connection. */
        CompletableFuture<HttpResponse<String>> postAndGoOn(String path, ObjectNode body, String... headers)
                throws InterruptedException {
            HttpRequest.Builder request = request(path)
                    .header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(body.toString()));
            return http.sendAsync(
                    (headers.length == 0 ? request : request.headers(headers)).build(), BodyHandlers.ofString());
        }

        /** All samples by name, labels in braces included. */
        Map<String, Double> metrics() throws IOException, InterruptedException {
            return metrics.metrics(url());
        }

        /** The sum of the samples of that name with labels that contain {@code label}. */
        double metric(String sample, String label) throws IOException, InterruptedException {
            return sum(metrics(), sample, label);
        }

        Prompts prompts() throws IOException, InterruptedException {
            return Prompts.of(metrics());
        }

        /** Waits until it holds no request and no block. */
        void awaitRest() throws Exception {
            Await.until(
                    DEADLINE,
                    () -> name + " still has requests or KV blocks",
                    () -> metric("baton:kv_blocks_used", "") == 0
                            && metric("vllm:num_requests_running", "") == 0
                            && metric("vllm:num_requests_waiting", "") == 0);
        }

        String log() throws IOException {
            return Files.readString(log);
        }

        String logTail() {
            try {
                List<String> lines = Files.readAllLines(log);
                return "---- " + name + (isAlive() ? "" : ", ended") + ":\n"
                        + String.join("\n", lines.subList(Math.max(0, lines.size() - LOG_TAIL_LINES), lines.size()));
            } catch (IOException e) {
                return "---- " + name + ": no log: " + e;
            }
        }

        @Override
        public String toString() {
            return name;
        }
    }

    /** The sum of the samples of that name with labels that contain {@code label}. */
    private static double sum(Map<String, Double> samples, String sample, String label) {
        return samples.entrySet().stream()
                .filter(entry -> entry.getKey().equals(sample) || entry.getKey().startsWith(sample + "{"))
                .filter(entry -> entry.getKey().contains(label))
                .mapToDouble(Map.Entry::getValue)
                .sum();
    }

    /** Where prompt tokens' KV came from. */
    record Prompts(int computed, int cached, int transferred) {
        /** The counts from all samples of an instance. */
        static Prompts of(Map<String, Double> samples) {
            String name = "vllm:prompt_tokens_by_source_total";
            return new Prompts(
                    (int) sum(samples, name, "\"local_compute\""),
                    (int) sum(samples, name, "\"local_cache_hit\""),
                    (int) sum(samples, name, "\"external_kv_transfer\""));
        }

        Prompts plus(Prompts more) {
            return new Prompts(computed + more.computed, cached + more.cached, transferred + more.transferred);
        }

        Prompts since(Prompts before) {
            return new Prompts(computed - before.computed, cached - before.cached, transferred - before.transferred);
        }
    }
}
