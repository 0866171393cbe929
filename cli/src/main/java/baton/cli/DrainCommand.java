package baton.cli;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;
import tools.jackson.databind.json.JsonMapper;

/** {@code baton drain}: an instance leaves its routers. */
@Command(
        name = "drain",
        description = "Drains an instance at its routers and hands its hottest prefixes over, before it is stopped.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class DrainCommand implements Callable<Integer> {
    private static final Duration CONNECT = Duration.ofSeconds(5);
    /** The router's own bound. */
    private static final int MOST_WAIT_SECONDS = 3600;

    private static final JsonMapper JSON = JsonMapper.builder().build();

    @Spec
    private CommandSpec spec;

    @Option(
            names = "--router",
            required = true,
            paramLabel = "URL",
            description = "The router. Each address of an http:// URL's host name is a router; all of them are asked.")
    private URI router;

    @Option(
            names = "--url",
            paramLabel = "URL",
            description = "The instance, as the router knows it (default: the variable BATON_INSTANCE_URL).")
    private @Nullable String url;

    @Option(names = "--admin-key", description = "The router's admin key (default: the variable BATON_ADMIN_KEY).")
    private @Nullable String adminKey;

    @Option(
            names = "--wait",
            defaultValue = "60",
            paramLabel = "SECONDS",
            description = "How long its requests and the hand-over of its cache may take (default: ${DEFAULT-VALUE}).")
    private int waitSeconds;

    @Override
    public Integer call() throws IOException, InterruptedException {
        String instance = given("url", url, "BATON_INSTANCE_URL");
        String key = given("admin-key", adminKey, "BATON_ADMIN_KEY");
        Require.between("wait", waitSeconds, 0, MOST_WAIT_SECONDS);
        Duration longest = CONNECT.plusSeconds(2L * waitSeconds);
        int drained = 0;
        int failed = 0;
        try (HttpClient http = HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .connectTimeout(CONNECT)
                        .build();
                ExecutorService asking = Executors.newVirtualThreadPerTaskExecutor()) {
            List<URI> routers = listening(routers());
            List<Callable<String>> questions = new ArrayList<>();
            for (URI each : routers) {
                // Every instance that stays gets the prefixes from one router.
                boolean keepsCache = questions.isEmpty();
                questions.add(() -> drain(http, each, instance, key, keepsCache));
            }
            for (Future<String> answer : asking.invokeAll(questions, longest.toMillis(), TimeUnit.MILLISECONDS)) {
                switch (answer.state()) {
                    case SUCCESS -> {
                        spec.commandLine().getOut().println(answer.resultNow());
                        drained++;
                    }
                    case FAILED -> {
                        spec.commandLine().getErr().println("baton: " + answer.exceptionNow());
                        failed++;
                    }
                    case CANCELLED, RUNNING -> {
                        spec.commandLine().getErr().println("baton: a router has not answered in time");
                        failed++;
                    }
                }
            }
        }
        return drained > 0 && failed == 0 ? 0 : 1;
    }

    /** Those of a name's addresses at which a router listens: others may be of another address family, or of a router that starts. */
    private List<URI> listening(List<URI> routers) {
        List<URI> found = new ArrayList<>();
        for (URI each : routers) {
            int port = each.getPort() < 0 ? ("https".equals(each.getScheme()) ? 443 : 80) : each.getPort();
            try (Socket socket = new Socket()) {
                socket.connect(new InetSocketAddress(each.getHost(), port), (int) CONNECT.toMillis());
                found.add(each);
            } catch (IOException e) {
                spec.commandLine().getErr().println("baton: no router listens at " + each + ": " + e.getMessage());
            }
        }
        return found;
    }

    private static String given(String option, @Nullable String value, String variable) {
        return Optional.ofNullable(value)
                .or(() -> Optional.ofNullable(System.getenv(variable)))
                .filter(text -> !text.isEmpty())
                .orElseThrow(() -> new ConfigException(option, "is missing, and the variable " + variable + " too"));
    }

    private List<URI> routers() throws IOException {
        if (router.getHost() == null) {
            throw new ConfigException("router", "is '" + router + "', must be http://host:port");
        }
        if (!"http".equals(router.getScheme())) {
            return List.of(router);
        }
        List<URI> all = new ArrayList<>();
        for (InetAddress address : InetAddress.getAllByName(router.getHost())) {
            String host = address.getHostAddress();
            all.add(URI.create("http://" + (host.contains(":") ? "[" + host + "]" : host) + ":"
                    + (router.getPort() < 0 ? 80 : router.getPort())));
        }
        return all;
    }

    /** Asks for the instance in both roles: it may have changed it, and has both while it does. */
    private String drain(HttpClient http, URI asked, String instance, String key, boolean keepsCache)
            throws IOException, InterruptedException {
        List<String> answers = new ArrayList<>();
        String refusal = "";
        for (String role : List.of("prefill", "decode")) {
            String body = JSON.createObjectNode()
                    .put("role", role)
                    .put("url", instance)
                    .put("keep_cache", keepsCache)
                    .put("wait", waitSeconds)
                    .toString();
            HttpResponse<String> answer = http.send(
                    HttpRequest.newBuilder(asked.resolve("/v1/instances/drain"))
                            .timeout(CONNECT.plusSeconds(waitSeconds))
                            .header("Content-Type", "application/json")
                            .header("Authorization", "Bearer " + key)
                            .POST(HttpRequest.BodyPublishers.ofString(body))
                            .build(),
                    BodyHandlers.ofString());
            if (answer.statusCode() == 200) {
                answers.add(asked + ": " + answer.body());
            } else {
                refusal = answer.statusCode() + ": " + answer.body();
            }
        }
        if (answers.isEmpty()) {
            throw new CommandFailedException(asked + " answers " + refusal);
        }
        return String.join("\n", answers);
    }
}
