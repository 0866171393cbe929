package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.cli.Ledgers.Case;
import baton.testkit.Await;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Two prefill and two decode instances behind one router; some of them die. */
@Tag("thorough")
class KillTest {
    private static final int MAX_TOKENS = 20;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Instance> PREFILLS = new ArrayList<>();
    private static final List<Instance> DECODES = new ArrayList<>();

    private static Instance router;

    @BeforeAll
    static void start() throws Exception {
        Path shared = INSTANCES.directory("kv");
        for (int i = 0; i < 2; i++) {
            PREFILLS.add(INSTANCES.serve("prefill-" + i, "kv_producer", shared, "--no-enable-prefix-caching"));
            DECODES.add(INSTANCES.serve("decode-" + i, "kv_consumer", shared, "--no-enable-prefix-caching"));
        }
        router = INSTANCES.route("router", PREFILLS, DECODES);
    }

    /** Whoever was killed comes back on its port, and the router's health probe finds it. */
    @AfterEach
    void restart() throws Exception {
        for (Instance instance : List.of(PREFILLS.get(0), PREFILLS.get(1), DECODES.get(0), DECODES.get(1))) {
            if (!instance.isAlive()) {
                instance.restart();
            }
        }
        Await.until(
                Instances.DEADLINE,
                () -> "not all instances are up again",
                () -> router.metric("baton:router_instances_up", "") == 4);
        assertAnswered(Ledgers.named("recall-80"));
    }

    @Test
    void requestsAreSpreadAndAllAnswersAreRight() throws Exception {
        List<Integer> before = requestsSeen();
        askAllAtOnce(Ledgers.clear(), () -> {});
        List<Integer> after = requestsSeen();
        for (int i = 0; i < after.size(); i++) {
            assertThat(after.get(i) - before.get(i)).isGreaterThan(3);
        }
        for (Instance decode : DECODES) {
            assertThat(decode.prompts().transferred()).isPositive();
        }
    }

    @Test
    void whenADecodeInstanceIsKilledItsStreamContinuesAtTheOther() throws Exception {
        String text = streamed(true);
        for (int i = 0; i < 4; i++) {
            assertAnswered(Ledgers.named("recall-120"));
        }
        assertThat(text).isEqualTo(streamed(false));
    }

    /**
     * The text of a long answer that is streamed to its end.
     *
     * @param killed whether its decode instance is killed after the first line
     */
    private static String streamed(boolean killed) throws Exception {
        HttpResponse<InputStream> answer = router.stream(
                "/v1/completions",
                Instances.greedy(Ledgers.prompt(200, 5), 1800).put("ignore_eos", true));
        assertThat(answer.statusCode()).isEqualTo(200);
        List<String> events;
        try (BufferedReader reader = new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
            String first = reader.readLine();
            if (killed) {
                named(DECODES, answer.headers().firstValue("X-Baton-Decode").orElseThrow())
                        .kill();
            }
            events = Stream.concat(Stream.of(first), reader.lines())
                    .filter(line -> line.startsWith("data: "))
                    .map(line -> line.substring("data: ".length()))
                    .toList();
        }
        assertThat(events.getLast()).isEqualTo("[DONE]");
        return events.stream()
                .limit(events.size() - 1)
                .map(event ->
                        Instances.JSON.readTree(event).at("/choices/0/text").asString())
                .collect(Collectors.joining());
    }

    @Test
    void withoutDecodeInstancesTheErrorNamesThem() throws Exception {
        for (Instance decode : DECODES) {
            decode.kill();
        }
        assertUnavailable("decode");
    }

    @Test
    void whenAPrefillInstanceIsKilledTheOtherServes() throws Exception {
        List<Case> asked = Ledgers.clear().stream()
                .filter(recorded -> recorded.prompt().length > 400)
                .toList();
        Instance victim = PREFILLS.getFirst();
        double retries = router.metric("baton:router_retries_total", "prefill");
        double ended = router.metric("baton:router_requests_total", "");
        // Frozen first, so that it surely dies with prompts in its hands.
        victim.freeze();
        askAllAtOnce(asked, () -> {
            Await.until(Instances.DEADLINE, () -> "no prompt is stuck at " + victim, () -> {
                double running = router.metric("baton:router_requests_running", "");
                double all = running + router.metric("baton:router_requests_total", "") - ended;
                return all == asked.size() && running > 0 && running < asked.size() && othersRest(victim);
            });
            victim.kill();
        });
        assertThat(router.metric("baton:router_retries_total", "prefill")).isGreaterThan(retries);
    }

    @Test
    void withoutPrefillInstancesTheErrorNamesThem() throws Exception {
        for (Instance prefill : PREFILLS) {
            prefill.kill();
        }
        assertUnavailable("prefill");
    }

    private static boolean othersRest(Instance victim) throws Exception {
        for (Instance instance : List.of(PREFILLS.get(0), PREFILLS.get(1), DECODES.get(0), DECODES.get(1))) {
            if (instance != victim && instance.metric("vllm:num_requests_running", "") > 0) {
                return false;
            }
        }
        return true;
    }

    private static void assertUnavailable(String role) throws Exception {
        Case asked = Ledgers.named("recall-80");
        // Before the router has them down, a request would wait for another instance.
        Await.until(
                Instances.DEADLINE,
                () -> role + " instances are up",
                () -> router.metric("baton:router_instances_up", role) == 0);
        Reply refused = router.complete(asked.prompt(), MAX_TOKENS);
        assertThat(refused.status()).isEqualTo(503);
        assertThat(refused.error()).contains(role);
        Reply health = router.get("/health");
        assertThat(health.status()).isEqualTo(503);
        assertThat(health.json().path("missing").path(0).asString()).isEqualTo(role);
    }

    private interface Interference {
        void happen() throws Exception;
    }

    /** Asks through the router, all cases at once, and demands the recorded answers. */
    private static void askAllAtOnce(List<Case> asked, Interference meanwhile) throws Exception {
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Reply>> replies = asked.stream()
                    .map(recorded -> clients.submit(() -> router.complete(recorded.prompt(), MAX_TOKENS)))
                    .toList();
            meanwhile.happen();
            for (int i = 0; i < asked.size(); i++) {
                assertThat(replies.get(i).get(120, TimeUnit.SECONDS).tokenIds())
                        .as(asked.get(i).name())
                        .isEqualTo(asked.get(i).answer());
            }
        }
    }

    private static void assertAnswered(Case asked) throws Exception {
        assertThat(router.complete(asked.prompt(), MAX_TOKENS).tokenIds()).isEqualTo(asked.answer());
    }

    private static Instance named(List<Instance> instances, String url) throws InterruptedException {
        for (Instance instance : instances) {
            if (instance.url().toString().equals(url)) {
                return instance;
            }
        }
        throw new AssertionError("no instance at " + url);
    }

    private static List<Integer> requestsSeen() throws Exception {
        List<Integer> seen = new ArrayList<>();
        for (Instance instance : List.of(PREFILLS.get(0), PREFILLS.get(1), DECODES.get(0), DECODES.get(1))) {
            seen.add((int) instance.metric("vllm:request_success_total", ""));
        }
        return seen;
    }
}
