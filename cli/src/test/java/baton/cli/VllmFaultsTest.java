package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.cli.MixedPrompts.Asked;
import baton.testkit.Await;
import java.io.IOException;
import java.net.http.HttpTimeoutException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.node.ObjectNode;

/**
 * A real vLLM 0.32 lives on through all that Baton's side can do to it under load: instances and routers that are killed or stopped past
 * the lease, clients that leave, requests and references that are wrong. {@code -Dtests.faults=N} is how many, {@code -Dtests.seed=N}
 * for others.
 */
@Tag("peers")
@Isolated("vLLM and its counterpart need the cores.")
@Timeout(3600)
class VllmFaultsTest {
    private static final int FAULTS = Integer.getInteger("tests.faults", 200);
    private static final long SEED = Long.getLong("tests.seed", 21);
    private static final int PROMPTS = 40;
    private static final int CLIENTS = 3;
    private static final int MAX_TOKENS = 8;
    private static final int LEASE_SECONDS = 4;
    private static final Duration LATEST = Duration.ofMinutes(2);

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @AutoClose
    private static MixedFleet fleet;

    private static List<Asked> prompts;

    private final Map<String, LongAdder> outcomes = new ConcurrentSkipListMap<>();
    private final AtomicInteger salts = new AtomicInteger();

    private enum Fault {
        PREFILL_KILLED,
        DECODE_KILLED,
        ROUTER_KILLED,
        PREFILL_STOPPED,
        DECODE_STOPPED,
        CLIENTS_LEAVE,
        REQUEST_IS_WRONG,
        REFERENCE_IS_WRONG,
        REFERENCE_IS_LATE
    }

    @BeforeAll
    static void start() throws Exception {
        fleet = MixedFleet.start(INSTANCES, Vllm.Setup.of("float32").leaseSeconds(LEASE_SECONDS));
        prompts = MixedPrompts.ask(
                MixedPrompts.single(PROMPTS, SEED),
                1,
                prompt -> fleet.vllm()
                        .post(
                                "/v1/completions",
                                MixedFleet.body(prompt, MAX_TOKENS)
                                        .put("cache_salt", "alone")
                                        .toString())
                        .tokenIds());
    }

    @Test
    void vllmLivesOn() throws Exception {
        Random random = new Random(SEED);
        Map<Fault, Integer> injected = new TreeMap<>();
        long engine = fleet.vllm().pids();
        CountDownLatch over = new CountDownLatch(1);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, CLIENTS)
                    .<Future<?>>mapToObj(_ -> {
                        Random own = new Random(random.nextLong());
                        return clients.submit(() -> {
                            while (over.getCount() > 0) {
                                Asked asked = prompts.get(own.nextInt(PROMPTS));
                                count(ask(own.nextBoolean() ? fleet.toVllm() : fleet.fromVllm(), asked));
                                pause(own, 300);
                            }
                            return null;
                        });
                    })
                    .toList();
            try {
                for (Fault fault : faults(random)) {
                    inject(fault, random);
                    injected.merge(fault, 1, Integer::sum);
                    assertVllmServes(random, injected);
                    assertThat(asking).noneMatch(Future::isDone);
                }
            } finally {
                over.countDown();
            }
            for (Future<?> each : asking) {
                each.get(2 * LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        }
        System.out.printf("VllmFaultsTest: faults %s; requests %s (-Dtests.seed=%d)%n", injected, outcomes, SEED);
        assertThat(fleet.vllm().pids()).as("vLLM's processes").isEqualTo(engine);
        fleet.vllm().awaitRest();
        // Its side channel answers an instance that it has not met.
        fleet.decode().kill();
        fleet.decode().restart();
        for (Asked each : prompts) {
            awaitRight(fleet.fromVllm(), each);
            awaitRight(fleet.toVllm(), each);
        }
        assertThat(fleet.decode().prompts().transferred()).isPositive();
        assertThat(fleet.vllm().log()).doesNotContain("EngineDeadError");
    }

    /** The same number of faults of each kind, in any order. */
    private static List<Fault> faults(Random random) {
        List<Fault> faults = new ArrayList<>();
        for (int i = 0; i < FAULTS; i++) {
            faults.add(Fault.values()[i % Fault.values().length]);
        }
        Collections.shuffle(faults, random);
        return faults;
    }

    private void assertVllmServes(Random random, Map<Fault, Integer> injected) throws Exception {
        assertThat(fleet.vllm().get("/health").status())
                .as("vLLM's health after %s\n%s", injected, fleet.vllm().tail())
                .isEqualTo(200);
        for (Instance router : List.of(fleet.toVllm(), fleet.fromVllm())) {
            awaitRight(router, prompts.get(random.nextInt(PROMPTS)));
        }
    }

    private void awaitRight(Instance router, Asked asked) throws Exception {
        Await.until(
                LATEST,
                () -> "no right answer " + router + "\n" + fleet.vllm().tail() + "\n" + router.logTail(),
                () -> ask(router, asked).equals("right"));
    }

    private void count(String outcome) {
        outcomes.computeIfAbsent(outcome, _ -> new LongAdder()).increment();
    }

    /** How it ended: {@code right}, or with which error; fails if it is neither. */
    private String ask(Instance router, Asked asked) throws Exception {
        ObjectNode body = MixedFleet.body(asked.prompt(), MAX_TOKENS).put("cache_salt", "s" + salts.incrementAndGet());
        Reply reply;
        try {
            reply = router.post("/v1/completions", body.toString());
        } catch (HttpTimeoutException e) {
            throw new AssertionError("no answer " + router + "\n" + fleet.vllm().tail(), e);
        } catch (IOException e) {
            return "router lost";
        }
        if (reply.status() == 200) {
            assertThat(reply.tokenIds())
                    .as("%s, a prompt of %d tokens", router, asked.prompt().length)
                    .isEqualTo(asked.answer());
            return "right";
        }
        assertThat(reply.status()).as(reply.body()).isIn(502, 503, 504);
        return "error " + reply.status();
    }

    private void inject(Fault fault, Random random) throws Exception {
        switch (fault) {
            case PREFILL_KILLED -> killed(fleet.prefill(), random);
            case DECODE_KILLED -> killed(fleet.decode(), random);
            case ROUTER_KILLED -> killed(random.nextBoolean() ? fleet.toVllm() : fleet.fromVllm(), random);
            case PREFILL_STOPPED -> stopped(fleet.prefill(), random);
            case DECODE_STOPPED -> stopped(fleet.decode(), random);
            case CLIENTS_LEAVE -> {
                List<CompletableFuture<?>> left = new ArrayList<>();
                for (Instance router : List.of(fleet.toVllm(), fleet.fromVllm())) {
                    for (int i = 0; i < 3; i++) {
                        int[] prompt = prompts.get(random.nextInt(PROMPTS)).prompt();
                        ObjectNode body = MixedFleet.body(prompt, 200)
                                .put("stream", random.nextBoolean())
                                .put("cache_salt", "s" + salts.incrementAndGet());
                        left.add(router.postAndGoOn("/v1/completions", body));
                        pause(random, 200);
                    }
                }
                left.forEach(each -> each.cancel(true));
            }
            case REQUEST_IS_WRONG -> {
                for (Instance router : List.of(fleet.toVllm(), fleet.fromVllm())) {
                    String body = wrong(random);
                    Reply reply = router.post("/v1/completions", body);
                    assertThat(reply.status()).as("%s: %s", body, reply.body()).isBetween(400, 499);
                }
            }
            case REFERENCE_IS_WRONG -> {
                Asked asked = prompts.get(random.nextInt(PROMPTS));
                ObjectNode params = reference(asked);
                List<String> fields = params.propertyNames().stream().toList();
                String field = fields.get(random.nextInt(fields.size()));
                switch (random.nextInt(3)) {
                    case 0 -> params.remove(field);
                    case 1 -> params.put(field, -1);
                    default -> params.put(field, "another");
                }
                // The answer, or an error: an unsigned reference is accepted if its numbers are possible.
                assertThat(decode(asked, params).status()).as("%s", params).isBetween(200, 499);
            }
            case REFERENCE_IS_LATE -> {
                Asked asked = prompts.get(random.nextInt(PROMPTS));
                ObjectNode params = reference(asked);
                pause(TimeUnit.SECONDS.toMillis(LEASE_SECONDS + 2));
                // vLLM may have used its blocks again, and does not say so: the answer may be another's.
                assertThat(decode(asked, params).status()).as("%s", params).isEqualTo(200);
            }
        }
    }

    /** A request that no instance can answer. */
    private static String wrong(Random random) {
        ObjectNode body = MixedFleet.body(new int[] {1, 2, 3}, MAX_TOKENS);
        return switch (random.nextInt(7)) {
            case 0 -> "{\"prompt\": [1, 2";
            case 1 -> body.put("max_tokens", -1).toString();
            case 2 -> body.put("temperature", "warm").toString();
            case 3 -> body.put("prompt", true).toString();
            case 4 -> {
                int[] long_ = new int[5000];
                Arrays.fill(long_, 7);
                yield MixedFleet.body(long_, MAX_TOKENS).toString();
            }
            case 5 -> {
                body.set("kv_transfer_params", MixedFleet.doRemoteDecode());
                yield body.toString();
            }
            default -> body.put("n", 0).toString();
        };
    }

    /** The reference to the blocks of vLLM's prefill leg. */
    private ObjectNode reference(Asked asked) throws Exception {
        ObjectNode first = MixedFleet.body(asked.prompt(), 1).put("cache_salt", "s" + salts.incrementAndGet());
        first.set("kv_transfer_params", MixedFleet.doRemoteDecode());
        return (ObjectNode)
                fleet.vllm().post("/v1/completions", first.toString()).json().path("kv_transfer_params");
    }

    private static Reply decode(Asked asked, ObjectNode params) throws IOException, InterruptedException {
        ObjectNode second = MixedFleet.body(asked.prompt(), 1);
        second.set("kv_transfer_params", params);
        return fleet.decode().post("/v1/completions", second.toString());
    }

    private static void killed(Instance instance, Random random) throws Exception {
        instance.kill();
        pause(random, 2000);
        instance.restart();
        instance.url();
    }

    private static void stopped(Instance instance, Random random) throws Exception {
        instance.freeze();
        try {
            pause(random, 2000 * LEASE_SECONDS);
        } finally {
            instance.thaw();
        }
    }

    private static void pause(Random random, int mostMillis) {
        pause(random.nextInt(mostMillis));
    }

    private static void pause(long millis) {
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(millis));
    }
}
