package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.testkit.Await;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Decode instances are killed, stopped for a while and drained under load, now and then a prefill instance is killed with them, or stopped. Each answer has the bytes that it has without a failure.
 *
 * <table><caption>Options of longer runs</caption>
 * <tr><td>{@code -Dtests.continued}</td><td>number of faults; {@code .seconds}: after which no more begin; {@code .gap}: the fewest milliseconds between two; {@code .restart}: milliseconds after which a killed instance starts again</td></tr>
 * <tr><td>{@code -Dtests.continued.clients}, {@code .decodes}</td><td>requests at once; decode instances</td></tr>
 * <tr><td>{@code -Dtests.continued.prompt}, {@code .output}</td><td>length of all prompts and the most of answers, in tokens</td></tr>
 * <tr><td>{@code -Dtests.continued.step}</td><td>{@code --max-num-batched-tokens} of the instances</td></tr>
 * <tr><td>{@code -Dtests.continued.model}, {@code .memory}</td><td>another model, the size of its KV cache</td></tr>
 * <tr><td>{@code -Dtests.continued.warmup}</td><td>{@code true}: instances warm up, as they do outside of tests</td></tr>
 * <tr><td>{@code -Dtests.drained}, {@code -Dtests.drains}</td><td>streams of which an instance that is drained has a third; number of drains</td></tr>
 * <tr><td>{@code -Dtests.seed}</td><td>other moments</td></tr>
 * </table>
 * The pauses of streams are printed, those with a prompt that was computed again apart, each group with the course of the request with the longest.
 */
@Tag("thorough")
class ContinuedProcessesTest {
    private static final int FAULTS = Integer.getInteger("tests.continued", 8);
    private static final int LENGTH = Integer.getInteger("tests.continued.prompt", 0);
    private static final long SEED = Long.getLong("tests.seed", 7);
    private static final Duration WITHIN = Duration.ofSeconds(Long.getLong("tests.continued.seconds", 3600));
    private static final int GAP_MILLIS = Integer.getInteger("tests.continued.gap", 200);
    private static final int CLIENTS = Integer.getInteger("tests.continued.clients", 6);
    private static final int DECODE_INSTANCES = Integer.getInteger("tests.continued.decodes", 3);
    private static final String KEY = "operator";
    private static final int DRAINED = Integer.getInteger("tests.drained", 24);
    private static final int DRAINS = Integer.getInteger("tests.drains", 1);
    private static final Path MODEL = Path.of(System.getProperty("tests.continued.model", Instances.MODEL.toString()));
    private static final String MEMORY = System.getProperty("tests.continued.memory", "96M");
    private static final boolean WARM_UP = Boolean.getBoolean("tests.continued.warmup");
    private static final int MAX_TOKENS = Integer.getInteger("tests.continued.output", 160);
    private static final int STEP_TOKENS = Integer.getInteger("tests.continued.step", 256);
    private static final int WITH_PREFILL = 4;
    private static final int WITH_A_HANG = 6;
    private static final Duration HANG = Duration.ofSeconds(6);
    /** A process that starts takes the processors from the instances that continue. */
    private static final Duration BEFORE_RESTART = Duration.ofMillis(Long.getLong("tests.continued.restart", 1000));

    /** The time in which intervals between tokens are measured before and after a drain. */
    private static final Duration GAPS_WINDOW = Duration.ofSeconds(2);

    private static final Duration LATEST = Duration.ofMinutes(5);
    private static final Pattern ID = Pattern.compile("\"id\":\"[^\"]*\"");
    private static final Pattern CREATED = Pattern.compile("\"created\":\\d+");
    /** How many tokens came from caches is another number after a failure. */
    private static final Pattern CACHED = Pattern.compile("\"prompt_tokens_details\":(null|\\{[^}]*})");

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Asked> ASKED = new ArrayList<>();
    private static final List<Instance> PREFILLS = new ArrayList<>();
    private static final List<Instance> DECODES = new ArrayList<>();

    private static Instance router;

    /** Instances that no fault has at the moment. */
    private final Set<Instance> up = ConcurrentHashMap.newKeySet();

    private final AtomicInteger answers = new AtomicInteger();
    private final List<Pause> pauses = Collections.synchronizedList(new ArrayList<>());

    /** Milliseconds of prefill legs that computed a whole prompt. */
    private final List<Double> computed = Collections.synchronizedList(new ArrayList<>());

    /** The pause from the failure of a stream's instance to its next event. */
    private record Pause(double millis, boolean isPromptCached, JsonNode steps) {}

    /** Times between two tokens. */
    private record TokenGaps(double seconds, double count) {
        static TokenGaps ofOthers() throws Exception {
            TokenGaps all = new TokenGaps(0, 0);
            for (Instance other : DECODES.subList(1, DECODES.size())) {
                all = new TokenGaps(
                        all.seconds + other.metric("vllm:inter_token_latency_seconds_sum", ""),
                        all.count + other.metric("vllm:inter_token_latency_seconds_count", ""));
            }
            return all;
        }

        TokenGaps after(TokenGaps before) {
            return new TokenGaps(seconds - before.seconds, count - before.count);
        }

        double meanMillis() {
            return 1e3 * seconds / count;
        }

        static double meanMillis(Duration window) throws Exception {
            TokenGaps start = ofOthers();
            LockSupport.parkNanos(window.toNanos());
            return ofOthers().after(start).meanMillis();
        }
    }

    private record Asked(ObjectNode body, String answer) {}

    @BeforeAll
    static void start() throws Exception {
        Instance alone = INSTANCES.serve("alone", MODEL, MEMORY, "--dtype", "float32");
        List<ObjectNode> bodies = new ArrayList<>();
        List<CompletableFuture<HttpResponse<String>>> undisturbed = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            ObjectNode body = Instances.greedy(Ledgers.prompt(LENGTH > 0 ? LENGTH : 300 + 130 * i, i), MAX_TOKENS)
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
                default -> {
                    body.put("stream", false).put("repetition_penalty", 1.2).remove("stream_options");
                    if (i > 4) {
                        body.put("logprobs", 2).put("echo", i > 8);
                    }
                }
            }
            bodies.add(body);
            undisturbed.add(alone.postAndGoOn("/v1/completions", body));
        }
        for (int i = 0; i < bodies.size(); i++) {
            HttpResponse<String> answer = undisturbed.get(i).get(LATEST.toSeconds(), TimeUnit.SECONDS);
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(200);
            ASKED.add(new Asked(bodies.get(i), comparable(answer.body())));
        }
        alone.kill();
        for (int i = 0; i < 2; i++) {
            PREFILLS.add(serve("prefill-" + i, "kv_producer"));
        }
        for (int i = 0; i < DECODE_INSTANCES; i++) {
            DECODES.add(serve("decode-" + i, "kv_both"));
        }
        router = route("router", "off");
        Await.until(
                LATEST,
                () -> "instances are not up",
                () -> router.metric("baton:router_instances_up", "") == PREFILLS.size() + DECODES.size());
    }

    private static Instance route(String name, String balance) throws Exception {
        return INSTANCES.route(
                name,
                PREFILLS,
                DECODES,
                "--flow",
                "kv_transfer_params_push",
                "--admin-key",
                KEY,
                "--continue-after",
                "4",
                "--balance-streams",
                balance);
    }

    private static Instance serve(String name, String role) throws Exception {
        List<String> options = new ArrayList<>(List.of(
                "--max-num-batched-tokens",
                Integer.toString(STEP_TOKENS),
                // Blocks for an instance that was killed are free again before the test looks.
                "--kv-transfer-config.kv_connector_extra_config.kv_lease_duration",
                "8"));
        if (WARM_UP) {
            options.add("--warmup");
        }
        return INSTANCES.serveBlocks(name, MODEL, MEMORY, "NixlConnector", role, options.toArray(String[]::new));
    }

    /** An answer with the id and time of all answers. */
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
        up.addAll(PREFILLS);
        up.addAll(DECODES);
        int kills = 0;
        long end = System.nanoTime() + WITHIN.toNanos();
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
            List<Future<?>> all = new ArrayList<>(asking);
            try {
                for (int i = 0;
                        i < FAULTS
                                && System.nanoTime() < end
                                && all.stream().noneMatch(each -> each.state() == Future.State.FAILED);
                        i++) {
                    LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(GAP_MILLIS + random.nextInt(800)));
                    boolean isHang = i % WITH_A_HANG == 0;
                    Instance decode = choose(DECODES, random);
                    if (isHang) {
                        decode.freeze();
                    } else {
                        decode.kill();
                        kills++;
                    }
                    all.add(clients.submit(() -> isHang ? thaw(decode) : restart(decode)));
                    if (i % WITH_PREFILL == WITH_PREFILL - 1) {
                        Instance prefill = choose(PREFILLS, random);
                        prefill.kill();
                        all.add(clients.submit(() -> restart(prefill)));
                    }
                }
            } finally {
                over.countDown();
            }
            for (Future<?> each : all) {
                each.get(2 * LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        }
        print("%d decode instances killed, %d right answers (-Dtests.seed=%d)".formatted(kills, answers.get(), SEED));
        assertThat(router.metric("baton:router_streams_continued_total", "\"continued\""))
                .as("streams that were continued")
                .isPositive();
    }

    @Test
    void requestsLeaveAPrefillInstanceThatHangs() throws Exception {
        // Decode instances wait for prefill's answer.
        Instance following = INSTANCES.route(
                "following", PREFILLS, DECODES, "--flow", "kv_transfer_params", "--continue-after", "4");
        assertThat(following.url()).isNotNull();
        Instance hung = PREFILLS.getFirst();
        hung.freeze();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = ASKED.stream()
                    .<Future<?>>map(asked -> clients.submit(() -> {
                        ask(following, asked);
                        return null;
                    }))
                    .toList();
            for (Future<?> each : asking) {
                each.get(LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        } finally {
            hung.thaw();
        }
        assertThat(following.metric("baton:router_retries_total", "prefill")).isPositive();
        awaitUp(hung);
    }

    @Test
    void aDrainedInstanceHandsItsStreamsOver() throws Exception {
        for (int i = 0; i < DRAINS; i++) {
            drainUnderLoad(DECODES.getFirst());
        }
        assertThat(router.metric("baton:router_streams_continued_total", "\"leaving\""))
                .isPositive();
    }

    private void drainUnderLoad(Instance leaving) throws Exception {
        long tokens = tokensOf(leaving);
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, DRAINED)
                    .<Future<?>>mapToObj(i -> clients.submit(() -> {
                        ask(ASKED.get(i % 12 / 4 * 4 + i % 3));
                        return null;
                    }))
                    .toList();
            Await.until(
                    LATEST,
                    () -> "few streams run at it",
                    () -> tokensOf(leaving) > tokens + DRAINED
                            && (leaving.metric("vllm:num_requests_running", "") >= DRAINED / 4.0 || waiting() == 0));
            double before = TokenGaps.meanMillis(GAPS_WINDOW);
            TokenGaps atStart = TokenGaps.ofOthers();
            long start = System.nanoTime();
            int first = drain(leaving);
            Await.until(LATEST, () -> "streams stay", () -> drain(leaving) == 0);
            long over = System.nanoTime() - start;
            double meanwhile = TokenGaps.ofOthers().after(atStart).meanMillis();
            String course =
                    "%d requests left it after %d ms; others' tokens followed each other by %.0f ms before, %.0f ms meanwhile, %.0f ms with all streams"
                            .formatted(first, over / 1_000_000, before, meanwhile, TokenGaps.meanMillis(GAPS_WINDOW));
            for (Future<?> each : asking) {
                each.get(LATEST.toSeconds(), TimeUnit.SECONDS);
            }
            print(course);
        } finally {
            operate(router, "resume", leaving);
        }
    }

    @Test
    void anInstanceWithAFullCacheGivesStreamsToOthers() throws Exception {
        Instance balancing = route("balancing", "on");
        for (Instance empty : DECODES.subList(1, DECODES.size())) {
            operate(balancing, "drain", empty);
        }
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = IntStream.range(0, DRAINED)
                    .<Future<?>>mapToObj(i -> clients.submit(() -> {
                        ask(balancing, ASKED.get(i % 12 / 4 * 4 + i % 3));
                        return null;
                    }))
                    .toList();
            Await.until(
                    LATEST,
                    () -> "its cache does not fill",
                    () -> DECODES.getFirst().metric("vllm:kv_cache_usage_perc", "") > 0.6);
            for (Instance empty : DECODES.subList(1, DECODES.size())) {
                operate(balancing, "resume", empty);
            }
            for (Future<?> each : asking) {
                each.get(LATEST.toSeconds(), TimeUnit.SECONDS);
            }
        }
        System.out.println("ContinuedProcessesTest: streams that moved from a full instance: "
                + balancing.metric("baton:router_streams_continued_total", "reason=\"balance\""));
        assertThat(balancing.metric("baton:router_streams_continued_total", "reason=\"balance\""))
                .isPositive();
        assertThat(balancing.metric("baton:router_streams_continued_total", "outcome=\"failed\""))
                .isZero();
    }

    private static double waiting() throws Exception {
        double waiting = 0;
        for (Instance prefill : PREFILLS) {
            waiting +=
                    prefill.metric("vllm:num_requests_waiting", "") + prefill.metric("vllm:num_requests_running", "");
        }
        return waiting;
    }

    private static int drain(Instance instance) throws Exception {
        return operate(router, "drain", instance).path("running").asInt(-1);
    }

    private static JsonNode operate(Instance by, String action, Instance instance) throws Exception {
        String body = Instances.JSON
                .createObjectNode()
                .put("role", "decode")
                .put("url", instance.url().toString())
                .toString();
        Instances.Reply reply = by.post("/v1/instances/" + action, body, "Authorization", "Bearer " + KEY);
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        return reply.json();
    }

    private static long tokensOf(Instance instance) throws Exception {
        return (long) instance.metric("vllm:generation_tokens_total", "");
    }

    private void print(String what) throws Exception {
        System.out.println("ContinuedProcessesTest: " + what);
        new TreeMap<>(router.metrics()).forEach((sample, value) -> {
            if (sample.startsWith("baton:router_stream") && !sample.contains("bucket") && value > 0) {
                System.out.println("  " + sample + " " + value);
            }
        });
        Map<Boolean, List<Pause>> ordered = pauses.stream()
                .sorted(Comparator.comparingDouble(Pause::millis))
                .collect(Collectors.groupingBy(Pause::isPromptCached));
        ordered.forEach((isPromptCached, of) -> {
            printMillis(
                    isPromptCached ? "pauses" : "pauses with a prompt that was computed again",
                    of.stream().map(Pause::millis).toList());
            of.getLast().steps.forEach(step -> System.out.println("    " + step));
        });
        printMillis("whole prompts", computed.stream().sorted().toList());
    }

    private static void printMillis(String of, List<Double> sorted) {
        if (!sorted.isEmpty()) {
            System.out.println("  %d %s in ms: median %.0f, 90 %% %.0f, 99 %% %.0f, longest %.0f"
                    .formatted(
                            sorted.size(),
                            of,
                            sorted.get(sorted.size() / 2),
                            sorted.get(sorted.size() * 9 / 10),
                            sorted.get(sorted.size() * 99 / 100),
                            sorted.getLast()));
        }
    }

    private void ask(Asked asked) throws Exception {
        ask(router, asked);
    }

    private void ask(Instance by, Asked asked) throws Exception {
        HttpResponse<String> answer =
                by.postAndGoOn("/v1/completions", asked.body).get(LATEST.toSeconds(), TimeUnit.SECONDS);
        String id = answer.headers().firstValue("X-Request-Id").orElse("");
        assertThat(answer.statusCode()).as("%s: %s", id, answer.body()).isEqualTo(200);
        assertThat(comparable(answer.body())).as(id).isEqualTo(asked.answer);
        answers.incrementAndGet();
        JsonNode course = by.get("/v1/requests/" + id + "/explain").json();
        boolean isPromptCached = course.at("/prefill/cached_tokens").asInt(1) > 0;
        double failed = -1;
        boolean begun = false;
        for (JsonNode step : course.path("steps")) {
            String what = step.path("what").asString();
            begun |= what.equals("first byte") || what.startsWith("first tokens");
            if (what.equals("the answer goes on")) {
                pauses.add(new Pause(step.path("at_ms").asDouble() - failed, isPromptCached, course.path("steps")));
                failed = -1;
            } else if (begun && failed < 0 && what.startsWith("decode instance ")) {
                failed = step.path("at_ms").asDouble();
            }
        }
        if (!isPromptCached) {
            computed.add(course.at("/prefill/ended_ms").asDouble()
                    - course.at("/prefill/sent_ms").asDouble());
        }
    }

    /** One of those that are up. Two others are, or all others where there are fewer, so that a request which the next fault hits too has one. */
    private Instance choose(List<Instance> of, Random random) throws Exception {
        List<Instance> all = new ArrayList<>();
        Await.until(LATEST, () -> "instances do not come up again: " + of, () -> {
            all.clear();
            of.stream().filter(up::contains).forEach(all::add);
            return all.size() > Math.min(2, of.size() - 1);
        });
        Instance chosen = all.get(random.nextInt(all.size()));
        up.remove(chosen);
        return chosen;
    }

    private boolean thaw(Instance decode) throws Exception {
        LockSupport.parkNanos(HANG.toNanos());
        decode.thaw();
        return up.add(decode);
    }

    private boolean restart(Instance instance) throws Exception {
        LockSupport.parkNanos(BEFORE_RESTART.toNanos());
        instance.restart();
        awaitUp(instance);
        return up.add(instance);
    }

    private static void awaitUp(Instance instance) throws Exception {
        String url = instance.url().toString();
        Await.until(
                LATEST,
                () -> instance + " is not up again",
                () -> router.get("/v1/instances")
                        .json()
                        .path("instances")
                        .valueStream()
                        .anyMatch(each -> url.startsWith(each.path("url").asString())
                                && each.path("up").asBoolean()));
    }
}
