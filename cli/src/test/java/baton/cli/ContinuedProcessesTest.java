package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.testkit.Await;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Decode instances are killed, stopped for a while and drained under load, now and then a prefill instance is killed with them. Each stream has the bytes that it has without a failure.
 *
 * <p>{@code -Dtests.continued} is the number of faults, {@code -Dtests.seed=N} for other moments.
 */
@Tag("thorough")
class ContinuedProcessesTest {
    private static final int FAULTS = Integer.getInteger("tests.continued", 12);
    private static final long SEED = Long.getLong("tests.seed", 7);
    private static final int CLIENTS = 6;
    private static final String KEY = "operator";
    private static final int DRAINED = 24;
    private static final int MAX_TOKENS = 160;
    private static final int WITH_PREFILL = 4;
    private static final int WITH_A_HANG = 6;
    private static final Duration HANG = Duration.ofSeconds(6);
    private static final Duration BEFORE_RESTART = Duration.ofSeconds(1);
    private static final Duration LATEST = Duration.ofSeconds(90);
    private static final Pattern ID = Pattern.compile("\"id\":\"[^\"]*\"");
    private static final Pattern CREATED = Pattern.compile("\"created\":\\d+");
    /** How many tokens came from caches is another number after a failure. */
    private static final Pattern CACHED = Pattern.compile("\"prompt_tokens_details\":(null|\\{[^}]*})");

    private static final Pattern SHORT_PAUSES =
            Pattern.compile("stream_pause_seconds_bucket.*le=\"(0[.][0-9]+|1[.]0|2[.]0)\"");

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Asked> ASKED = new ArrayList<>();
    private static final List<Instance> PREFILLS = new ArrayList<>();
    private static final List<Instance> DECODES = new ArrayList<>();

    @SuppressWarnings("NullAway.Init")
    private static Instance router;

    private final AtomicInteger answers = new AtomicInteger();

    private record Asked(ObjectNode body, String answer) {}

    @BeforeAll
    static void start() throws Exception {
        Instance alone = INSTANCES.serve("alone", "--dtype", "float32");
        for (int i = 0; i < 12; i++) {
            ObjectNode body = Instances.greedy(Ledgers.prompt(300 + 130 * i, i), MAX_TOKENS)
                    .put("stream", true)
                    .put("ignore_eos", true);
            body.putObject("stream_options").put("include_usage", true);
            switch (i % 4) {
                case 0 -> body.put("logprobs", 2);
                case 1 -> body.put("temperature", 1).put("seed", i);
                case 2 ->
                    body.put("temperature", 1)
                            .put("seed", i)
                            .putObject("structured_outputs")
                            .put("regex", "([a-z]{3,9} ){60}");
                default ->
                    body.put("stream", false).put("repetition_penalty", 1.2).remove("stream_options");
            }
            HttpResponse<String> answer =
                    alone.postAndGoOn("/v1/completions", body).get(LATEST.toSeconds(), TimeUnit.SECONDS);
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            ASKED.add(new Asked(body, comparable(answer.body())));
        }
        alone.kill();
        for (int i = 0; i < 2; i++) {
            PREFILLS.add(INSTANCES.serveBlocks("prefill-" + i, "NixlConnector", "kv_producer"));
        }
        for (int i = 0; i < 3; i++) {
            DECODES.add(INSTANCES.serveBlocks("decode-" + i, "NixlConnector", "kv_both"));
        }
        router = INSTANCES.route(
                "router",
                PREFILLS,
                DECODES,
                "--flow",
                "kv_transfer_params_push",
                "--admin-key",
                KEY,
                "--continue-after",
                "4");
    }

    /** With the id and time of all answers. */
    private static String comparable(String answer) {
        assertThat(different(ID, answer)).as("ids in %s", answer).hasSize(1);
        assertThat(different(CREATED, answer)).as("times in %s", answer).hasSize(1);
        String named =
                CREATED.matcher(ID.matcher(answer).replaceAll("\"id\":\"\"")).replaceAll("\"created\":0");
        return CACHED.matcher(named).replaceAll("\"prompt_tokens_details\":null");
    }

    private static Set<String> different(Pattern pattern, String text) {
        Set<String> found = new HashSet<>();
        Matcher matcher = pattern.matcher(text);
        while (matcher.find()) {
            found.add(matcher.group());
        }
        return found;
    }

    @Test
    void eachAnswerHasTheBytesOfOneWithoutAFailure() throws Exception {
        Random random = new Random(SEED);
        CountDownLatch over = new CountDownLatch(1);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, CLIENTS)
                    .<Future<?>>mapToObj(_ -> {
                        Random own = new Random(random.nextLong());
                        return clients.submit(() -> {
                            while (over.getCount() > 0) {
                                ask(ASKED.get(own.nextInt(ASKED.size())));
                            }
                            return null;
                        });
                    })
                    .toList();
            try {
                for (int i = 0; i < FAULTS && asking.stream().noneMatch(Future::isDone); i++) {
                    fault(i, random);
                }
            } finally {
                over.countDown();
            }
            for (Future<?> each : asking) {
                each.get(2 * LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        }
        print("%d faults, %d right answers (-Dtests.seed=%d)".formatted(FAULTS, answers.get(), SEED));
        assertThat(router.metric("baton:router_streams_continued_total", "\"continued\""))
                .as("streams that were continued")
                .isPositive();
    }

    @Test
    void aDrainedInstanceHandsItsStreamsOver() throws Exception {
        Instance leaving = DECODES.getFirst();
        long before = tokensOf(leaving);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, DRAINED)
                    .<Future<?>>mapToObj(i -> clients.submit(() -> {
                        ask(ASKED.get(i % 3));
                        return null;
                    }))
                    .toList();
            Await.until(LATEST, () -> "no stream is at it", () -> tokensOf(leaving) > before + DRAINED);
            long start = System.nanoTime();
            int first = drain(leaving);
            Await.until(LATEST, () -> "streams stay", () -> drain(leaving) == 0);
            print("%d requests left it after %d ms".formatted(first, (System.nanoTime() - start) / 1_000_000));
            for (Future<?> each : asking) {
                each.get(LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        } finally {
            operate("resume", leaving);
        }
        assertThat(router.metric("baton:router_streams_continued_total", "\"leaving\""))
                .isPositive();
    }

    private static int drain(Instance instance) throws Exception {
        return operate("drain", instance).path("running").asInt(-1);
    }

    private static JsonNode operate(String action, Instance instance) throws Exception {
        String body = Instances.JSON
                .createObjectNode()
                .put("role", "decode")
                .put("url", instance.url().toString())
                .toString();
        Instances.Reply reply = router.post("/v1/instances/" + action, body, "Authorization", "Bearer " + KEY);
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        return reply.json();
    }

    private static long tokensOf(Instance instance) throws Exception {
        return (long) instance.metric("vllm:generation_tokens_total", "");
    }

    private static void print(String what) throws Exception {
        System.out.println("ContinuedProcessesTest: " + what);
        new TreeMap<>(router.metrics()).forEach((sample, value) -> {
            if (sample.startsWith("baton:router_stream") && !sample.contains("bucket") && value > 0) {
                System.out.println("  " + sample + " " + value);
            }
        });
        router.metrics().forEach((sample, value) -> {
            if (SHORT_PAUSES.matcher(sample).find()) {
                System.out.println("  " + sample + " " + value);
            }
        });
    }

    private void ask(Asked asked) throws Exception {
        HttpResponse<String> answer =
                router.postAndGoOn("/v1/completions", asked.body).get(LATEST.toSeconds(), TimeUnit.SECONDS);
        String id = answer.headers().firstValue("X-Request-Id").orElse("");
        assertThat(answer.statusCode()).as("%s: %s", id, answer.body()).isEqualTo(200);
        assertThat(comparable(answer.body())).as(id).isEqualTo(asked.answer);
        answers.incrementAndGet();
    }

    private static void fault(int number, Random random) throws Exception {
        LockSupport.parkNanos(TimeUnit.MICROSECONDS.toNanos(200_000 + random.nextInt(800_000)));
        Instance decode = DECODES.get(random.nextInt(DECODES.size()));
        Instance prefill = PREFILLS.get(random.nextInt(PREFILLS.size()));
        if (number % WITH_A_HANG == 0) {
            decode.freeze();
            LockSupport.parkNanos(HANG.toNanos());
            decode.thaw();
            return;
        }
        decode.kill();
        if (number % WITH_PREFILL == WITH_PREFILL - 1) {
            prefill.kill();
            prefill.restart();
        }
        // A process that starts takes the processors from the instances that continue.
        LockSupport.parkNanos(BEFORE_RESTART.toNanos());
        decode.restart();
        decode.url();
        prefill.url();
        Await.until(
                LATEST,
                () -> "not all instances are up again",
                () -> router.metric("baton:router_instances_up", "") == PREFILLS.size() + DECODES.size());
    }
}
