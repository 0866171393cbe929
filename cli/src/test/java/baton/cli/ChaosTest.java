package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.cli.Ledgers.Case;
import baton.testkit.Await;
import java.io.IOException;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * A router, two prefill and two decode instances in processes of their own, under load, while instances are killed, stopped, restarted,
 * drained, added, removed, partitioned from the router and change their roles; prompts are split where requests wait. Every request ends in
 * its right answer or in an error with the cause; a stream that has begun ends in its right answer; none is answered twice or with
 * another's answer, and no block is in use afterwards.
 *
 * <p>{@code -Dtests.chaos_seconds} is how long, {@code -Dtests.seed=N} for other faults.
 */
@Tag("thorough")
class ChaosTest {
    private static final long SECONDS = Long.getLong("tests.chaos_seconds", 40);
    private static final long SEED = Long.getLong("tests.seed", 7);
    private static final int CLIENTS = 8;
    private static final int MAX_TOKENS = 16;
    private static final String KEY = "operator";
    private static final String BROKEN_STREAM = "stream ended by an error";
    /** The limit of one request: far more than all waits of the router and the instances. */
    private static final Duration LATEST = Duration.ofSeconds(60);

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** Cases with different answers, so that an answer to another request is detected. */
    private static final List<Case> ASKED = Ledgers.clear().stream()
            .filter(each -> each.prompt().length > 40 && each.prompt().length < 1000)
            .toList();

    private static final List<Member> MEMBERS = new ArrayList<>();

    private static Instance router;

    private final Map<String, LongAdder> outcomes = new ConcurrentSkipListMap<>();
    private final AtomicInteger ids = new AtomicInteger();

    /** An instance, and the link over which the router reaches it. */
    private record Member(String role, Instance instance, PartitionedLink link) {}

    private enum Fault {
        KILLED,
        STOPPED_FOR_A_WHILE,
        TERMINATED,
        DRAINED,
        REMOVED,
        ADDED,
        PARTITIONED,
        CONNECTIONS_RESET,
        ROLE_CHANGED
    }

    @BeforeAll
    static void start() throws Exception {
        List<String> roles = List.of("prefill", "decode", "prefill", "decode");
        List<Instance> instances = new ArrayList<>();
        for (String role : roles) {
            instances.add(instance(role + "-" + instances.size()));
        }
        for (int i = 0; i < roles.size(); i++) {
            Instance instance = instances.get(i);
            MEMBERS.add(new Member(roles.get(i), instance, new PartitionedLink(instance.url())));
        }
        List<String> options = new ArrayList<>(List.of(
                "--flow",
                "auto",
                "--split-prompts",
                "auto",
                "--policy",
                "least_loaded",
                "--prefill-fallback",
                "decode",
                "--admin-key",
                KEY));
        MEMBERS.forEach(
                each -> options.addAll(List.of("--" + each.role, each.link.url().toString())));
        router = INSTANCES.route("router", List.of(), List.of(), options.toArray(String[]::new));
    }

    @AfterAll
    static void closeLinks() throws IOException {
        for (Member member : MEMBERS) {
            member.link.close();
        }
    }

    private static Instance instance(String name) throws IOException {
        return INSTANCES.serveBlocks(
                name,
                "NixlConnector",
                "kv_both",
                "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration",
                "4",
                "--kv-transfer-config.kv_connector_extra_config.handshake_timeout",
                "2");
    }

    @Test
    void everyRequestEndsInItsRightAnswerOrAClearError() throws Exception {
        Random random = new Random(SEED);
        Map<Fault, Integer> injected = new TreeMap<>();
        CountDownLatch over = new CountDownLatch(1);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, CLIENTS)
                    .<Future<?>>mapToObj(_ -> {
                        Random own = new Random(random.nextLong());
                        return clients.submit(() -> {
                            while (over.getCount() > 0) {
                                ask(ASKED.get(own.nextInt(ASKED.size())), own.nextBoolean());
                            }
                            return null;
                        });
                    })
                    .toList();
            try {
                long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
                while (System.nanoTime() < end && asking.stream().noneMatch(Future::isDone)) {
                    Fault fault = Fault.values()[random.nextInt(Fault.values().length)];
                    inject(fault, MEMBERS.get(random.nextInt(MEMBERS.size())), random);
                    injected.merge(fault, 1, Integer::sum);
                    pause(random, 1000);
                }
            } finally {
                over.countDown();
            }
            for (Future<?> each : asking) {
                each.get(2 * LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        }
        System.out.printf("ChaosTest: faults %s; requests %s (-Dtests.seed=%d)%n", injected, outcomes, SEED);
        Await.until(LATEST, () -> "not all instances are up again", ChaosTest::allAreUp);
        for (Case each : ASKED) {
            assertThat(askOnce(each, false)).isEqualTo("right");
            assertThat(askOnce(each, true)).isEqualTo("right");
        }
        assertThat(outcomes).as("streams continue elsewhere").doesNotContainKey(BROKEN_STREAM);
        assertThat(outcomes.getOrDefault("right", new LongAdder()).sum())
                .as("right answers among %s", outcomes)
                .isGreaterThan(
                        outcomes.values().stream().mapToLong(LongAdder::sum).sum() / 2);
    }

    private static boolean allAreUp() throws IOException, InterruptedException {
        return MEMBERS.stream().allMatch(each -> each.instance.isAlive())
                && router.metric("baton:router_instances_up", "") == MEMBERS.size();
    }

    private void ask(Case asked, boolean stream) throws Exception {
        outcomes.computeIfAbsent(askOnce(asked, stream), _ -> new LongAdder()).increment();
    }

    /** How it ended: {@code right}, or with which error; fails if it is neither. */
    private String askOnce(Case asked, boolean stream) throws Exception {
        String id = "chaos-" + ids.incrementAndGet();
        ObjectNode body = Instances.greedy(asked.prompt(), MAX_TOKENS).put("stream", stream);
        Reply reply;
        try {
            reply = Reply.of(router.postAndGoOn("/v1/completions", body, "X-Request-Id", id)
                    .get(LATEST.toSeconds(), TimeUnit.SECONDS));
        } catch (TimeoutException e) {
            throw new AssertionError(
                    router.get("/v1/requests/" + id + "/explain").body(), e);
        }
        assertThat(reply.response().headers().firstValue("X-Request-Id")).as(id).contains(id);
        if (reply.status() != 200) {
            assertThat(reply.status()).as("%s: %s", id, reply.body()).isIn(502, 503, 504);
            assertThat(reply.error()).as("%s: %s", id, reply.body()).isNotBlank();
            return "error %d: %s".formatted(reply.status(), reply.error().replaceAll("http://[\\d.:]+", "URL"));
        }
        if (!stream) {
            assertThat(reply.tokenIds()).as(id).isEqualTo(asked.answer());
            return "right";
        }
        return streamed(id, asked, reply.body());
    }

    private static String streamed(String id, Case asked, String body) {
        List<String> events = Arrays.stream(body.split("\n\n", -1))
                .filter(event -> event.startsWith("data: "))
                .map(event -> event.substring("data: ".length()))
                .collect(Collectors.toCollection(ArrayList::new));
        assertThat(events).as("events of %s: %s", id, body).isNotEmpty();
        boolean done = events.getLast().equals("[DONE]");
        if (done) {
            events.removeLast();
        }
        List<JsonNode> parsed =
                events.stream().map(event -> Instances.JSON.readTree(event)).toList();
        int[] tokens = parsed.stream()
                .flatMapToInt(event -> Arrays.stream(
                        Instances.ints(event.path("choices").path(0).path("token_ids"))))
                .toArray();
        if (done) {
            assertThat(tokens).as("%s: %s", id, body).isEqualTo(asked.answer());
            return "right";
        }
        assertThat(parsed.getLast().path("error").path("message").asString(""))
                .as("error of %s: %s", id, body)
                .isNotBlank();
        assertThat(tokens).as("before the error of %s", id).isEqualTo(Arrays.copyOf(asked.answer(), tokens.length));
        return BROKEN_STREAM;
    }

    private static void inject(Fault fault, Member member, Random random) throws Exception {
        URI url = member.link.url();
        switch (fault) {
            case KILLED -> {
                member.instance.kill();
                restart(member, random);
            }
            case STOPPED_FOR_A_WHILE -> {
                member.instance.freeze();
                try {
                    pause(random, 6000);
                } finally {
                    member.instance.thaw();
                }
            }
            case TERMINATED -> {
                member.instance.terminate();
                member.instance.awaitExit();
                restart(member, random);
            }
            case DRAINED -> {
                operate("drain", member.role, url);
                pause(random, 2000);
                operate("resume", member.role, url);
            }
            case REMOVED -> {
                operate("remove", member.role, url);
                pause(random, 2000);
                operate("add", member.role, url);
            }
            case ADDED -> {
                // The same process under another address: a new instance to the router.
                try (PartitionedLink another = new PartitionedLink(member.instance.url())) {
                    operate("add", member.role, another.url());
                    pause(random, 4000);
                    operate("remove", member.role, another.url());
                    pause(random, 1000);
                }
            }
            case PARTITIONED -> {
                member.link.partition();
                try {
                    pause(random, 6000);
                } finally {
                    member.link.heal();
                }
            }
            case CONNECTIONS_RESET -> member.link.reset();
            case ROLE_CHANGED -> {
                operate("role", member.role.equals("prefill") ? "decode" : "prefill", url);
                pause(random, 3000);
                operate("role", member.role, url);
            }
        }
    }

    private static void restart(Member member, Random random) throws Exception {
        pause(random, 1000);
        member.instance.restart();
        member.instance.url();
    }

    private static void operate(String action, String role, URI url) throws IOException, InterruptedException {
        String body = Instances.JSON
                .createObjectNode()
                .put("role", role)
                .put("url", url.toString())
                .toString();
        Reply reply = router.post("/v1/instances/" + action, body, "Authorization", "Bearer " + KEY);
        assertThat(reply.status()).as("%s %s: %s", action, url, reply.body()).isEqualTo(200);
    }

    private static void pause(Random random, int mostMillis) {
        LockSupport.parkNanos(TimeUnit.MICROSECONDS.toNanos(random.nextInt(mostMillis * 1000)));
    }
}
