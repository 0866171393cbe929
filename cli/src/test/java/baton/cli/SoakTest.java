package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineStatus;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput.Completion;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LLM;
import baton.engine.local.LocalEngine;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.server.ApiServer;
import baton.server.PrometheusMetrics;
import baton.server.ServerConfig;
import baton.testkit.Await;
import java.io.IOException;
import java.io.InputStream;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Two engines in this process, one of them behind its HTTP server, that hand KV over through files which are damaged meanwhile;
 * long and short requests, aborts at every stage, refusals, sinks that throw, clients that leave, engines that are closed while
 * they work. In rounds: after each, nothing may be in use, and memory, threads and files are counted.
 *
 * <p>{@code -Dsoak.seconds} is the duration, {@code -Dtests.seed} the seed of the requests.
 */
@Tag("soak")
class SoakTest {
    private static final long SECONDS = Long.getLong("soak.seconds", 600);
    private static final long SEED = Long.getLong("tests.seed", System.nanoTime());
    private static final long ROUND_SECONDS = 8;
    private static final Duration DEADLINE = Duration.ofSeconds(60);
    private static final int CLIENTS = 5;
    private static final int MAX_LENGTH = 640;
    private static final int FILES = 1500;

    @TempDir
    Path files;

    private final ConcurrentSkipListMap<String, AtomicLong> counts = new ConcurrentSkipListMap<>();
    private final AtomicLong ids = new AtomicLong();

    @Test
    void noResourceGrowsOrLeaks() throws Exception {
        System.out.printf("Soaking for %d s, -Dtests.seed=%d%n", SECONDS, SEED);
        int filesBefore = SoakGrowth.openFiles();
        List<SoakGrowth.Sample> samples = new ArrayList<>();
        PrometheusMetrics metrics = new PrometheusMetrics("tiny-ledger");
        Random random = new Random(SEED);
        try (LocalEngine served = LocalEngine.start(config(LoadFailurePolicy.RECOMPUTE), metrics);
                LocalEngine strict =
                        LocalEngine.start(config(LoadFailurePolicy.FAIL), new PrometheusMetrics("tiny-ledger"));
                ApiServer api =
                        ApiServer.start(ServerConfig.of("tiny-ledger").port(0).build(), served, metrics)) {
            URI uri = URI.create("http://127.0.0.1:" + api.port());
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
            do {
                round(random.nextLong(), strict, uri);
                awaitIdle(served);
                awaitIdle(strict);
                SoakGrowth.Sample sample = SoakGrowth.Sample.take(
                        counts.values().stream().mapToLong(AtomicLong::get).sum());
                samples.add(sample);
                System.out.println(sample);
            } while (System.nanoTime() < end);
        }
        System.out.println(counts);
        // All that was meant to happen has happened.
        assertThat(counts)
                .containsKeys(
                        "engine STOP",
                        "engine LENGTH",
                        "engine ABORT",
                        "engine ERROR: KV load failed",
                        "engine ERROR: the sink throws",
                        "refused",
                        "http 200",
                        "http 400",
                        "http 404",
                        "http left",
                        "damaged",
                        "closed at work");
        SoakGrowth.assertFlat(samples);
        Await.until(
                DEADLINE, () -> "files are still open", () -> SoakGrowth.openFiles() <= filesBefore + SoakGrowth.FILES);
        Await.until(
                DEADLINE,
                () -> "threads still run: " + SoakGrowth.threads(),
                () -> SoakGrowth.threads().stream()
                        .noneMatch(name -> name.equals("engine") || name.startsWith("vert.x")));
    }

    private EngineConfig config(LoadFailurePolicy policy) {
        return EngineConfig.of(Instances.MODEL)
                .threads(1)
                .maxModelLen(MAX_LENGTH)
                // Few enough that requests are preempted.
                .numBlocks(100)
                .maxNumSeqs(16)
                .maxNumBatchedTokens(256)
                .kvTransfer(KvTransferConfig.builder("SharedStorageConnector", KvRole.BOTH)
                        .loadFailurePolicy(policy)
                        .extra("shared_storage_path", files.toString())
                        .build())
                .build();
    }

    private void round(long seed, LocalEngine engine, URI uri) throws Exception {
        Random random = new Random(seed);
        CountDownLatch over = new CountDownLatch(1);
        try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor();
                HttpClient http = HttpClient.newHttpClient()) {
            List<Future<?>> tasks = new ArrayList<>();
            for (int i = 0; i < CLIENTS; i++) {
                Random own = new Random(random.nextLong());
                Random others = new Random(random.nextLong());
                tasks.add(executor.submit(() -> until(over, () -> askEngine(engine, own))));
                tasks.add(executor.submit(() -> until(over, () -> askServer(http, uri, others))));
            }
            Random damaging = new Random(random.nextLong());
            tasks.add(executor.submit(() -> {
                while (!over.await(20, TimeUnit.MILLISECONDS)) {
                    damage(damaging);
                }
                return null;
            }));
            closeAtWork(random);
            over.await(ROUND_SECONDS, TimeUnit.SECONDS);
            over.countDown();
            for (Future<?> task : tasks) {
                task.get(120, TimeUnit.SECONDS);
            }
        } finally {
            over.countDown();
        }
    }

    private interface Task {
        void run() throws Exception;
    }

    private static Void until(CountDownLatch over, Task task) throws Exception {
        while (over.getCount() > 0) {
            task.run();
        }
        return null;
    }

    private void count(String what) {
        counts.computeIfAbsent(what, _ -> new AtomicLong()).incrementAndGet();
    }

    private static int[] prompt(Random random) {
        int length = random.nextInt(3) == 0 ? 100 + random.nextInt(450) : 1 + random.nextInt(60);
        return Ledgers.prompt(length, random.nextInt(25));
    }

    private static SamplingParams sampling(Random random) {
        SamplingParamsBuilder sampling = SamplingParams.builder()
                .maxTokens(1 + random.nextInt(random.nextInt(4) == 0 ? 60 : 12))
                .temperature(random.nextBoolean() ? 0 : 0.9)
                .ignoreEos(random.nextBoolean());
        if (random.nextInt(4) == 0) {
            sampling.n(3).temperature(1);
        }
        if (random.nextInt(4) == 0) {
            sampling.logprobs(3);
        }
        if (random.nextInt(8) == 0) {
            sampling.promptLogprobs(1);
        }
        if (random.nextInt(4) == 0) {
            sampling.stop(List.of("e", "the gate"));
        }
        return sampling.build();
    }

    private void askEngine(LocalEngine engine, Random random) {
        GenerationRequest request = new GenerationRequest(
                "soak-" + ids.getAndIncrement(),
                prompt(random),
                sampling(random),
                Optional.empty(),
                random.nextInt(10) == 0 ? Optional.of("salt") : Optional.empty(),
                random.nextInt(3));
        GenerationCollector collector = new GenerationCollector(request);
        AtomicInteger events = new AtomicInteger();
        int stage = random.nextInt(12);
        switch (random.nextInt(10)) {
            case 0 -> {
                engine.submit(request, collector);
                engine.abort(request.id());
            }
            case 1 ->
                engine.submit(request, event -> {
                    collector.accept(event);
                    if (events.getAndIncrement() == stage) {
                        engine.abort(request.id());
                    }
                });
            case 2 ->
                engine.submit(request, event -> {
                    collector.accept(event);
                    if (events.getAndIncrement() >= stage) {
                        throw new IllegalStateException("the sink throws");
                    }
                });
            case 3 -> {
                refuse(engine, random);
                return;
            }
            case 4 -> {
                engine.submit(request, collector);
                engine.abort("unknown");
                engine.resetPrefixCache();
            }
            default -> engine.submit(request, collector);
        }
        for (Completion completion :
                collector.result().orTimeout(60, TimeUnit.SECONDS).join().completions()) {
            String error = completion.error().orElse("");
            count("engine " + completion.reason()
                    + (completion.reason() != FinishReason.ERROR
                            ? ""
                            : error.startsWith("KV load failed")
                                    ? ": KV load failed"
                                    : error.contains("the sink throws") ? ": the sink throws" : ": " + error));
        }
        engine.abort(request.id());
    }

    private void refuse(LocalEngine engine, Random random) {
        int[] bad = switch (random.nextInt(3)) {
            case 0 -> new int[0];
            case 1 -> new int[MAX_LENGTH];
            default -> new int[] {5, 1 << 20};
        };
        try {
            engine.submit(
                    new GenerationRequest("refused-" + ids.getAndIncrement(), bad, SamplingParams.greedy(1)),
                    event -> {});
            throw new AssertionError("a prompt of " + bad.length + " tokens was taken");
        } catch (ConfigException e) {
            count("refused");
        }
    }

    private void askServer(HttpClient http, URI uri, Random random) throws Exception {
        String prompt =
                Arrays.stream(prompt(random)).mapToObj(Integer::toString).collect(Collectors.joining(",", "[", "]"));
        int kind = random.nextInt(8);
        String body = switch (kind) {
            case 0 -> "{\"model\": \"tiny-ledger\", \"prompt\": [1, 2";
            case 1 -> "{\"model\": \"tiny-ledger\", \"prompt\": \"a\", \"max_tokens\": \"many\"}";
            case 2 -> "{\"model\": \"another\", \"prompt\": \"a\"}";
            default ->
                "{\"model\": \"tiny-ledger\", \"prompt\": %s, \"max_tokens\": %d, \"stream\": %b, \"seed\": %d}"
                        .formatted(prompt, 1 + random.nextInt(40), kind >= 5, random.nextInt(1000));
        };
        HttpRequest request = HttpRequest.newBuilder(uri.resolve("/v1/completions"))
                .timeout(Duration.ofSeconds(60))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        var response = http.send(request, BodyHandlers.ofInputStream());
        try (InputStream answer = response.body()) {
            if (kind >= 6) {
                // Leaves in the middle of the stream, at the latest when it ends.
                answer.readNBytes(1 + random.nextInt(1500));
                count("http left");
            } else {
                answer.readAllBytes();
                count("http " + response.statusCode());
            }
        }
    }

    /** Truncates, changes or deletes a file; keeps their number down. */
    private void damage(Random random) throws IOException {
        List<Path> all;
        try (Stream<Path> walk = Files.walk(files)) {
            all = walk.filter(Files::isRegularFile).toList();
        } catch (UncheckedIOException e) {
            // Gone while the directory was read.
            return;
        }
        if (all.isEmpty()) {
            return;
        }
        Path file = all.get(random.nextInt(all.size()));
        try (RandomAccessFile open = new RandomAccessFile(file.toFile(), "rw")) {
            switch (random.nextInt(3)) {
                case 0 -> open.setLength(open.length() / 2);
                case 1 -> {
                    open.seek(random.nextLong(Math.max(1, open.length())));
                    open.write(random.nextInt(256));
                }
                default -> Files.deleteIfExists(file);
            }
            count("damaged");
        } catch (IOException e) {
            // Replaced meanwhile.
            count("not damaged");
        }
        for (Path old : all.subList(0, Math.max(0, all.size() - FILES))) {
            Files.deleteIfExists(old);
        }
    }

    /** An engine of its own, closed while it computes. */
    private void closeAtWork(Random random) {
        List<GenerationCollector> collectors = new ArrayList<>();
        try (LLM llm = new LLM(config(LoadFailurePolicy.RECOMPUTE))) {
            llm.generateTokens(List.of(prompt(random)), SamplingParams.greedy(2));
            for (int i = 0; i < 4; i++) {
                GenerationRequest request = new GenerationRequest(
                        "closed-" + i,
                        prompt(random),
                        SamplingParams.builder().maxTokens(100).ignoreEos(true).build());
                GenerationCollector collector = new GenerationCollector(request);
                llm.engine().submit(request, collector);
                collectors.add(collector);
            }
        }
        for (GenerationCollector collector : collectors) {
            collector.result().orTimeout(60, TimeUnit.SECONDS).join();
            count("closed at work");
        }
    }

    private static void awaitIdle(LocalEngine engine) throws Exception {
        Await.until(DEADLINE, () -> "not idle: " + engine.status(), () -> {
            EngineStatus status = engine.status();
            assertThat(status.failure()).isEmpty();
            return status.running() + status.waiting() + status.waitingForRemoteKv() + status.usedBlocks() == 0;
        });
    }
}
