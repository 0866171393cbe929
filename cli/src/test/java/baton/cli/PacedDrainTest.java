package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.PacedBackend.Pace;
import baton.cli.TimedStream.Gap;
import baton.testkit.Await;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.node.ObjectNode;

/**
 * A decode instance with the pace of a device is drained: how soon its streams are elsewhere, and how the tokens of the other streams follow each other meanwhile.
 * {@code -Dtests.paced.streams} run at each decode instance, with prompts of {@code -Dtests.paced.prompt} tokens; {@code -Dtests.paced.decodes} instances.
 */
@Tag("thorough")
class PacedDrainTest {
    private static final Pace PACE = new Pace(40, 0.05, 1);
    private static final int STREAMS = Integer.getInteger("tests.paced.streams", 8);
    private static final int PROMPT = Integer.getInteger("tests.paced.prompt", 960);
    private static final int INSTANCES_OF_DECODE = Integer.getInteger("tests.paced.decodes", 2);
    private static final int TOKENS = 200;
    private static final Duration WINDOW = Duration.ofSeconds(2);
    private static final String KEY = "operator";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /**
     * Its keys and values are those of tiny-ledger in number, but it attends to few of them: so the processors keep the pace with many long sequences.
     */
    private static Path model() throws IOException {
        Path model = INSTANCES.directory("model");
        try (Stream<Path> files = Files.list(Instances.MODEL)) {
            for (Path file : files.toList()) {
                Files.copy(file, model.resolve(file.getFileName()));
            }
        }
        Path file = model.resolve("config.json");
        ObjectNode config = (ObjectNode) Instances.JSON.readTree(Files.readString(file));
        config.put("model_type", "mistral")
                .put("sliding_window", 64)
                .put("max_position_embeddings", 8192)
                .putArray("architectures")
                .add("MistralForCausalLM");
        Files.writeString(file, config.toString());
        return model;
    }

    private static Instance serve(String name, Path model, int sequences, String... options) throws IOException {
        List<String> all = new ArrayList<>(List.of(options));
        all.add("--disable-hybrid-kv-cache-manager");
        long bytesOfAToken = 6144;
        return INSTANCES.serveBlocks(
                name,
                model,
                Long.toString(bytesOfAToken * sequences * (PROMPT + TOKENS + 64)),
                "NixlConnector",
                "kv_both",
                all.toArray(String[]::new));
    }

    @Test
    void theOtherStreamsKeepTheirPaceWhileAnInstanceIsDrained() throws Exception {
        int all = STREAMS * INSTANCES_OF_DECODE;
        Path model = model();
        Instance prefill = serve("prefill", model, all);
        List<Instance> decodes = new ArrayList<>();
        for (int i = 0; i < INSTANCES_OF_DECODE; i++) {
            decodes.add(serve("decode" + i, model, all, PACE.options()));
        }
        Instance leaving = decodes.getFirst();
        Instance router = INSTANCES.route(
                "router",
                List.of(prefill),
                decodes,
                "--flow",
                "kv_transfer_params_push",
                "--policy",
                "least_loaded",
                "--admin-key",
                KEY);
        List<int[]> prompts =
                IntStream.range(0, all).mapToObj(i -> Ledgers.prompt(PROMPT, i)).toList();
        List<int[]> expected = askAll(
                prompts,
                prompt ->
                        prefill.post("/v1/completions", body(prompt).toString()).tokenIds());
        long[] moments = new long[2];
        List<TimedStream> streams = new ArrayList<>();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<TimedStream>> asked = prompts.stream()
                    .map(prompt -> clients.submit(() -> TimedStream.of(router, body(prompt))))
                    .toList();
            Await.until(Instances.DEADLINE, () -> "few streams run", () -> {
                for (Instance decode : decodes) {
                    if (decode.metric("vllm:num_requests_running", "") < STREAMS) {
                        return false;
                    }
                }
                return true;
            });
            LockSupport.parkNanos(WINDOW.toNanos());
            moments[0] = System.nanoTime();
            assertThat(drain(router, leaving)).isEqualTo(STREAMS);
            Await.until(Instances.DEADLINE, () -> "streams stay", () -> drain(router, leaving) == 0);
            moments[1] = System.nanoTime();
            for (Future<TimedStream> each : asked) {
                streams.add(each.get(Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS));
            }
        }
        for (int i = 0; i < all; i++) {
            assertThat(streams.get(i).tokens()).isEqualTo(expected.get(i));
        }
        assertThat(router.metric("baton:router_streams_continued_total", "\"continued\""))
                .isEqualTo(STREAMS);
        print(streams, leaving, moments[0], moments[1]);
    }

    private static ObjectNode body(int[] prompt) {
        return Instances.greedy(prompt, TOKENS).put("ignore_eos", true);
    }

    private interface Ask {
        int[] ask(int[] prompt) throws Exception;
    }

    private static List<int[]> askAll(List<int[]> prompts, Ask ask) throws Exception {
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<int[]>> asked = prompts.stream()
                    .map(prompt -> clients.submit(() -> ask.ask(prompt)))
                    .toList();
            List<int[]> answers = new ArrayList<>();
            for (Future<int[]> each : asked) {
                answers.add(each.get(2 * Instances.DEADLINE.toSeconds(), TimeUnit.SECONDS));
            }
            return answers;
        }
    }

    private static void print(List<TimedStream> streams, Instance leaving, long start, long end) throws Exception {
        String left = leaving.url().toString();
        List<Gap> others = streams.stream()
                .filter(stream -> !stream.decode().equals(left))
                .flatMap(stream -> stream.gaps().stream())
                .toList();
        List<Double> pauses = streams.stream()
                .filter(stream -> stream.decode().equals(left))
                .map(stream -> stream.gaps().stream()
                        .filter(gap -> gap.at() > start && gap.at() < end + WINDOW.toNanos())
                        .max(Comparator.comparingDouble(Gap::millis))
                        .orElseThrow()
                        .millis())
                .sorted()
                .toList();
        int more = STREAMS + STREAMS / (INSTANCES_OF_DECODE - 1);
        System.out.printf(
                "PacedDrainTest: %s; %d streams of %d tokens left one of %d instances within %d ms, and paused for %.0f ms at the median, %.0f at most; between two tokens of a stream of the others %.1f ms before (%.0f by the pace), %.1f ms meanwhile, %.1f ms later (%.0f by the pace)%n",
                PACE,
                pauses.size(),
                PROMPT,
                INSTANCES_OF_DECODE,
                (end - start) / 1_000_000,
                pauses.get(pauses.size() / 2),
                pauses.getLast(),
                mean(others, start - WINDOW.toNanos(), start),
                PACE.step(0, STREAMS),
                mean(others, start, end),
                mean(others, end, end + WINDOW.toNanos()),
                PACE.step(0, more));
    }

    private static double mean(List<Gap> gaps, long from, long to) {
        return gaps.stream()
                .filter(gap -> gap.at() > from && gap.at() <= to)
                .mapToDouble(Gap::millis)
                .average()
                .orElse(Double.NaN);
    }

    private static int drain(Instance router, Instance instance) throws Exception {
        Instances.Reply reply = router.post(
                "/v1/instances/drain",
                "{\"role\": \"decode\", \"url\": \"%s\"}".formatted(instance.url()),
                "Authorization",
                "Bearer " + KEY);
        assertThat(reply.status()).as(reply.body()).isEqualTo(200);
        return reply.json().path("running").asInt(-1);
    }
}
