package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.Deadline;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.Ticker;
import baton.store.redis.RedisServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * OffloadingConnector with a file tier and a real Redis server behind a memory of a few chunks, while both tiers fail in every way: each
 * answer equals that of an engine alone, under the policy by which a failed load fails its request.
 */
class OffloadingFaultsTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 60);
    private static final int AT_ONCE = 4;
    private static final SamplingParams FOUR =
            SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(4).build();

    @TempDir
    Path directory;

    private final Random random = new Random(Long.getLong("tests.seed", 11));

    @BeforeAll
    static void needsRedis() {
        RedisServer.assumeInstalled();
    }

    /** The faults between two batches. */
    private enum Fault {
        NONE,
        REDIS_EMPTIED,
        REDIS_KILLED,
        REDIS_HANGS,
        FILES_REMOVED,
        FILES_DAMAGED,
        FILES_SWAPPED,
        ENGINE_RESTARTED
    }

    private EngineConfig config(String redis) {
        return LLMTest.config()
                .numBlocks(50)
                .maxModelLen(500)
                .kvTransfer(KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        // Some 40 blocks.
                        .extra("cpu_bytes_to_use", 4_000_000)
                        .extra("load_timeout_seconds", 0.2)
                        .extra(
                                "secondary_tiers",
                                List.of(
                                        Map.of(
                                                "type",
                                                "fs",
                                                "root_dir",
                                                directory.resolve("kv").toString()),
                                        Map.of("type", "redis", "url", redis)))
                        .build())
                .build();
    }

    @Test
    void everyAnswerIsRightWhileTiersFail() throws Exception {
        List<int[]> prompts = LLMTest.promptsThatBeginAlike(random, PROMPTS);
        List<int[]> alone = LLMTest.alone(prompts, FOUR);
        TransferredTokens transferred = new TransferredTokens();
        try (RedisServer redis = RedisServer.start(directory)) {
            EngineConfig config = config(redis.url());
            LLM llm = new LLM(config);
            try {
                for (int from = 0; from < PROMPTS; from += AT_ONCE) {
                    List<Integer> batch = IntStream.range(from, Math.min(from + AT_ONCE, PROMPTS))
                            .boxed()
                            .toList();
                    Fault fault = Fault.values()[random.nextInt(Fault.values().length)];
                    if (fault == Fault.ENGINE_RESTARTED) {
                        llm.close();
                        llm = new LLM(config);
                    }
                    begin(fault, redis);
                    // A prompt of before comes again.
                    List<Integer> asked = new ArrayList<>(batch);
                    asked.add(random.nextInt(from + 1));
                    List<RequestOutput> outputs = transferred.generate(
                            llm, asked.stream().map(prompts::get).toList(), FOUR);
                    for (int i = 0; i < asked.size(); i++) {
                        assertThat(outputs.get(i).tokens())
                                .as("prompt %d, %s", asked.get(i), fault)
                                .isEqualTo(alone.get(asked.get(i)));
                    }
                    end(fault, redis);
                }
            } finally {
                llm.close();
            }
        }
        assertThat(transferred.count()).as("tokens from the tiers").isPositive();
    }

    private void begin(Fault fault, RedisServer redis) throws IOException, InterruptedException {
        switch (fault) {
            case NONE, ENGINE_RESTARTED -> {}
            case REDIS_EMPTIED -> redis.command("FLUSHALL");
            case REDIS_KILLED -> redis.kill();
            case REDIS_HANGS -> redis.halt();
            case FILES_REMOVED -> {
                for (Path file : files()) {
                    Files.deleteIfExists(file);
                }
            }
            case FILES_DAMAGED -> {
                for (Path file : files()) {
                    damage(file);
                }
            }
            case FILES_SWAPPED -> swap(files());
        }
    }

    private static void end(Fault fault, RedisServer redis) throws IOException, InterruptedException {
        switch (fault) {
            case REDIS_KILLED -> redis.restart();
            case REDIS_HANGS -> redis.resume();
            default -> {}
        }
    }

    private List<Path> files() throws IOException {
        Path root = directory.resolve("kv");
        return Files.exists(root) ? values(root) : List.of();
    }

    /** The files of values. Walks again if a file was renamed or removed meanwhile. */
    static List<Path> values(Path root) throws IOException {
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (true) {
            try (Stream<Path> all = Files.walk(root)) {
                return all.filter(path -> path.toString().endsWith(".bin")).toList();
            } catch (UncheckedIOException e) {
                if (deadline.isOver()) {
                    throw e.getCause();
                }
            }
        }
    }

    private void damage(Path file) throws IOException {
        try {
            byte[] bytes = Files.readAllBytes(file);
            if (bytes.length == 0) {
                return;
            }
            switch (random.nextInt(3)) {
                case 0 -> {
                    bytes[random.nextInt(bytes.length)] ^= 8;
                    Files.write(file, bytes);
                }
                case 1 -> Files.write(file, Arrays.copyOf(bytes, random.nextInt(bytes.length)));
                default -> {}
            }
        } catch (NoSuchFileException _) {
            // Removed meanwhile.
        }
    }

    private static void swap(List<Path> files) throws IOException {
        for (int i = 0; i + 1 < files.size(); i += 2) {
            Path aside = files.get(i).resolveSibling("aside");
            try {
                Files.move(files.get(i), aside, StandardCopyOption.ATOMIC_MOVE);
                Files.move(files.get(i + 1), files.get(i), StandardCopyOption.ATOMIC_MOVE);
                Files.move(aside, files.get(i + 1), StandardCopyOption.ATOMIC_MOVE);
            } catch (NoSuchFileException _) {
                // Removed meanwhile.
            }
        }
    }
}
