package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.KvEventSettings;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.testkit.Await;
import java.net.URI;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requests go where their blocks are, as instances' KV events say. */
@Timeout(300)
class KvEventRoutingTest {
    private static final int INSTANCES = 4;
    private static final int CLIENTS = 8;

    private final RouterFixture fixture = new RouterFixture();
    private final List<CachingInstance> prefills = new ArrayList<>();
    private final FakeInstance decode = fixture.instance();

    @AfterEach
    void stopAll() throws Exception {
        prefills.forEach(CachingInstance::close);
        fixture.close();
    }

    private void instances(int count, int blocks) {
        for (int i = 0; i < count; i++) {
            prefills.add(new CachingInstance(fixture.instance(), blocks, i + 1));
        }
    }

    private Router router() {
        return router(prefills.stream().map(each -> each.http().uri()).toList());
    }

    private Router router(List<URI> addresses) {
        int before = subscribers();
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                addresses,
                List.of(decode.uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                new PolicySettings("prefix", "least_loaded", 1000, LocalPrefill.NEVER)
                        .withKvEvents(new KvEventSettings(true, true, 1 << 20, Optional.empty()))));
        Await.until("the router subscribes", RouterFixture.SOON, () -> subscribers() == before + prefills.size());
        fixture.awaitMetric(router, "baton:router_kv_event_publishers", prefills.size());
        return router;
    }

    private int subscribers() {
        return prefills.stream().mapToInt(CachingInstance::subscribers).sum();
    }

    private static String body(int[] tokens) {
        return "{\"prompt\":" + Arrays.toString(tokens) + ",\"max_tokens\":1}";
    }

    private static String prefill(HttpResponse<String> response) {
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        return response.headers().firstValue("X-Baton-Prefill").orElseThrow();
    }

    private static int[] random(Random random, int[] before, int more) {
        int[] tokens = Arrays.copyOf(before, before.length + more);
        for (int i = before.length; i < tokens.length; i++) {
            tokens[i] = random.nextInt(30_000);
        }
        return tokens;
    }

    private void awaitBlocks(Router router, int blocks) {
        fixture.awaitMetric(router, "baton:router_kv_event_blocks", blocks);
    }

    /**
     * Conversations of many users with one system prompt, of which several run at once: at least 0.95 of the hits of a single cache are
     * hits.
     */
    @Test
    void conversationsFindTheirBlocks() throws Exception {
        long seed = Long.getLong("tests.seed", 1);
        instances(INSTANCES, 4000);
        Router router = router();
        int[] system = random(new Random(seed), new int[0], 100);
        AtomicLong possible = new AtomicLong();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> all = new ArrayList<>();
            for (int client = 0; client < CLIENTS; client++) {
                Random random = new Random(seed + client);
                all.add(clients.submit((Callable<Integer>) () -> {
                    Map<Integer, int[]> conversations = new HashMap<>();
                    for (int i = 0; i < 100; i++) {
                        int which = random.nextInt(5);
                        int[] before = conversations.getOrDefault(which, system);
                        int[] prompt = random(random, before, 20 + random.nextInt(120));
                        prefill(fixture.post(router, body(prompt)));
                        possible.addAndGet((long) before.length / CachingInstance.BLOCK * CachingInstance.BLOCK);
                        // Conversations end, and others take their places.
                        if (prompt.length > 1500) {
                            conversations.remove(which);
                        } else {
                            conversations.put(which, prompt);
                        }
                    }
                    return 0;
                }));
            }
            for (Future<?> each : all) {
                each.get(240, TimeUnit.SECONDS);
            }
        }
        long cached =
                prefills.stream().mapToLong(each -> each.cachedTokens.get()).sum();
        assertThat((double) cached / possible.get()).as("seed %d", seed).isGreaterThanOrEqualTo(0.95);
        // Not by sending all to one.
        assertThat(prefills)
                .allSatisfy(each -> assertThat(each.promptTokens.get())
                        .isGreaterThan(prefills.stream()
                                        .mapToLong(all -> all.promptTokens.get())
                                        .sum()
                                / 16));
        assertThat(fixture.metric(router, "baton:router_choices_total{role=\"prefill\",why=\"events\"}"))
                .isGreaterThan(700);
        assertThat(fixture.metric(router, "baton:router_kv_event_losses_total")).isZero();
    }

    @Test
    void aRestartedRouterReadsTheInstancesBlocks() throws Exception {
        instances(3, 1000);
        Router first = router();
        Random random = new Random(1);
        List<int[]> prompts = new ArrayList<>();
        List<String> served = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            prompts.add(random(random, new int[0], 64));
            served.add(prefill(fixture.post(first, body(prompts.get(i)))));
        }
        assertThat(served)
                .contains(prefills.stream()
                        .map(each -> each.http().uri().toString())
                        .toArray(String[]::new));

        Router second = router();
        awaitBlocks(second, 48);
        for (int i = 0; i < prompts.size(); i++) {
            HttpResponse<String> answer = fixture.post(second, body(random(random, prompts.get(i), 30)));
            assertThat(prefill(answer)).isEqualTo(served.get(i));
            String id = answer.headers().firstValue("X-Request-Id").orElseThrow();
            assertThat(fixture.get(second, "/v1/requests/" + id + "/explain", "Accept", "text/plain")
                            .body())
                    .contains("it has 64 of the prompt's 94 tokens, by its KV events");
        }
    }

    @Test
    void promptsThatAreTextAreTokenizedByAnInstance() throws Exception {
        instances(2, 1000);
        Router first = router();
        String text = "a prompt of some words ".repeat(10);
        String body = "{\"prompt\":\"" + text + "\",\"model\":\"m\"}";
        String served = prefill(fixture.post(first, body));
        assertThat(fixture.metric(first, "baton:router_prompt_tokens_known_total{result=\"asked\"}"))
                .isEqualTo(1);

        // This one was sent nothing.
        Router second = router();
        awaitBlocks(second, text.length() / CachingInstance.BLOCK);
        for (int i = 0; i < 3; i++) {
            assertThat(prefill(fixture.post(second, body))).isEqualTo(served);
        }
        assertThat(fixture.metric(second, "baton:router_choices_total{role=\"prefill\",why=\"events\"}"))
                .isEqualTo(3);
    }

    @Test
    void blocksFromBeforeARestartAreForgotten() throws Exception {
        instances(2, 1000);
        Router router = router();
        int[] prompt = random(new Random(2), new int[0], 160);
        String served = prefill(fixture.post(router, body(prompt)));
        awaitBlocks(router, 10);
        CachingInstance holder = prefills.stream()
                .filter(each -> each.http().uri().toString().equals(served))
                .findFirst()
                .orElseThrow();
        holder.restart();
        awaitBlocks(router, 0);
        fixture.awaitMetric(router, "baton:router_kv_event_publishers", 2);
        // Its later blocks are known.
        String next = prefill(fixture.post(router, body(prompt)));
        awaitBlocks(router, 10);
        assertThat(prefill(fixture.post(router, body(prompt)))).isEqualTo(next);
    }

    @Test
    void anInstanceThatTellsNoEndpointIsFollowedAtThatOfItsUrl() throws Exception {
        instances(1, 1000);
        FakeInstance http = prefills.getFirst().http();
        String sources = "/kv_event_sources";
        // As an instance would say it.
        HttpResponse<String> told = fixture.postToInstance(http, sources, "{}");
        String endpoint = told.body().replaceAll(".*\"endpoint\":\"([^\"]*)\".*", "$1");
        String replay = told.body().replaceAll(".*\"replay_endpoint\":\"([^\"]*)\".*", "$1");
        var known = http.behaviour;
        http.behaviour = (request, response) -> {
            if (request.uri().equals(sources)) {
                FakeInstance.json(404, "{}").accept(request, response);
            } else {
                known.accept(request, response);
            }
        };
        Router router =
                router(List.of(URI.create(http.uri() + "?kv_events=" + endpoint + "&kv_events_replay=" + replay)));
        prefill(fixture.post(router, body(new int[160])));
        awaitBlocks(router, 10);
        assertThat(fixture.get(router, "/v1/instances").body()).contains("\"kv_blocks\":10");
    }
}
