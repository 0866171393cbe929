package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.FreePorts;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.redis.RedisServer;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * LMCacheConnectorV1 with each kind of remote store behind a memory of a few chunks, while that store fails in every way: each answer equals that
 * of an engine alone, under the policy by which a failed load fails its request.
 */
class LmCacheFaultsTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 32);
    private static final int AT_ONCE = 4;
    private static final SamplingParams FOUR =
            SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(4).build();

    @TempDir
    Path directory;

    private final Random random = new Random(Long.getLong("tests.seed", 12));

    /** The faults between two batches. */
    private enum Fault {
        NONE,
        EMPTIED,
        KILLED,
        SLOW,
        DAMAGED,
        CUT,
        ENGINE_RESTARTED
    }

    /** A store that can be made to fail. */
    private interface Remote extends AutoCloseable {
        String url();

        void begin(Fault fault) throws Exception;

        void end(Fault fault) throws Exception;
    }

    private final class Redis implements Remote {
        private final RedisServer server = RedisServer.start(directory);

        private Redis() throws IOException {}

        @Override
        public String url() {
            return server.url();
        }

        @Override
        public void begin(Fault fault) throws Exception {
            switch (fault) {
                case NONE, ENGINE_RESTARTED -> {}
                case EMPTIED -> server.command("FLUSHALL");
                case KILLED -> server.kill();
                case SLOW -> server.halt();
                case DAMAGED -> {
                    for (String key : keys("*kv_bytes")) {
                        server.command("SETRANGE", key, Integer.toString(random.nextInt(10_000)), "damaged");
                    }
                }
                case CUT -> {
                    for (String key : keys("*kv_bytes")) {
                        switch (random.nextInt(4)) {
                            case 0 -> server.command("SET", key, "short");
                            case 1 -> server.command("DEL", key);
                            case 2 -> server.command("SETRANGE", key.replace("kv_bytes", "metadata"), "12", "x");
                            default -> {}
                        }
                    }
                }
            }
        }

        private List<String> keys(String pattern) throws IOException {
            return server.command("KEYS", pattern)
                    .lines()
                    .filter(key -> !key.isEmpty())
                    .toList();
        }

        @Override
        public void end(Fault fault) throws Exception {
            switch (fault) {
                case KILLED -> server.restart();
                case SLOW -> server.resume();
                default -> {}
            }
        }

        @Override
        public void close() throws InterruptedException {
            server.close();
        }
    }

    private static final class Lm implements Remote {
        private final int port;
        private KvServer server;

        private Lm() throws IOException {
            port = FreePorts.inARow(1);
            server = start();
        }

        private KvServer start() throws IOException {
            // Evicts much of the time.
            return KvServer.start(KvServerSettings.of(port, 6 << 20));
        }

        @Override
        public String url() {
            return "lm://127.0.0.1:" + port;
        }

        /** Values at this server cannot be reached past it. */
        @Override
        public void begin(Fault fault) throws Exception {
            switch (fault) {
                case NONE, ENGINE_RESTARTED, SLOW, DAMAGED, CUT -> {}
                case EMPTIED -> {
                    server.close();
                    server = start();
                }
                case KILLED -> server.close();
            }
        }

        @Override
        public void end(Fault fault) throws Exception {
            if (fault == Fault.KILLED) {
                server = start();
            }
        }

        @Override
        public void close() {
            server.close();
        }
    }

    private final class Fs implements Remote {
        private final Path root = directory.resolve("fs");

        @Override
        public String url() {
            return "fs://host:0" + root;
        }

        @Override
        public void begin(Fault fault) throws Exception {
            switch (fault) {
                case NONE, ENGINE_RESTARTED, SLOW, KILLED -> {}
                case EMPTIED -> {
                    for (Path file : files()) {
                        Files.deleteIfExists(file);
                    }
                }
                case DAMAGED -> {
                    for (Path file : files()) {
                        byte[] bytes = Files.readAllBytes(file);
                        if (bytes.length > 0) {
                            bytes[random.nextInt(bytes.length)] ^= 8;
                        }
                        Files.write(file, bytes);
                    }
                }
                case CUT -> {
                    for (Path file : files()) {
                        byte[] bytes = Files.readAllBytes(file);
                        // Without its check a file could be LMCache's own, so that is cut through.
                        Files.write(file, Arrays.copyOf(bytes, random.nextInt(Math.max(1, bytes.length - 81))));
                    }
                }
            }
        }

        private List<Path> files() throws IOException {
            if (!Files.exists(root)) {
                return List.of();
            }
            try (Stream<Path> all = Files.list(root)) {
                return all.filter(path -> path.toString().endsWith(".data")).toList();
            }
        }

        @Override
        public void end(Fault fault) {}

        @Override
        public void close() {}
    }

    private static EngineConfig config(String url) {
        return LLMTest.config()
                .numBlocks(110)
                .maxModelLen(700)
                .maxNumBatchedTokens(128)
                .kvTransfer(KvTransferConfig.builder("LMCacheConnectorV1", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .extra("lmcache.chunk_size", 32)
                        .extra("lmcache.pre_caching_hash_algorithm", "sha256_cbor")
                        // Some 20 chunks.
                        .extra("lmcache.max_local_cpu_size", 0.0037)
                        .extra("lmcache.blocking_timeout_secs", 0.2)
                        .extra("lmcache.lookup_timeout_ms", 100)
                        .extra("lmcache.remote_url", url)
                        .build())
                .build();
    }

    private void everyAnswerIsRight(Remote remote) throws Exception {
        List<int[]> prompts = LLMTest.promptsThatBeginAlike(random, PROMPTS);
        List<int[]> alone = LLMTest.alone(prompts, FOUR);
        int transferred = 0;
        EngineConfig config = config(remote.url());
        LLM llm = new LLM(config);
        try (remote) {
            for (int from = 0; from < PROMPTS; from += AT_ONCE) {
                List<Integer> asked = new ArrayList<>(IntStream.range(from, Math.min(from + AT_ONCE, PROMPTS))
                        .boxed()
                        .toList());
                // A prompt of before comes again.
                asked.add(random.nextInt(from + 1));
                Fault fault = Fault.values()[random.nextInt(Fault.values().length)];
                if (fault == Fault.ENGINE_RESTARTED) {
                    llm.close();
                    llm = new LLM(config);
                }
                remote.begin(fault);
                List<RequestOutput> outputs =
                        llm.generateTokens(asked.stream().map(prompts::get).toList(), FOUR);
                for (int i = 0; i < asked.size(); i++) {
                    assertThat(outputs.get(i).tokens())
                            .as("prompt %d, %s", asked.get(i), fault)
                            .isEqualTo(alone.get(asked.get(i)));
                    transferred += outputs.get(i).cachedTokens();
                }
                remote.end(fault);
            }
        } finally {
            llm.close();
        }
        assertThat(transferred).as("tokens from the stores").isGreaterThan(500);
    }

    @Test
    void everyAnswerIsRightWhileRedisFails() throws Exception {
        RedisServer.assumeInstalled();
        everyAnswerIsRight(new Redis());
    }

    @Test
    void everyAnswerIsRightWhileAnLmServerFails() throws Exception {
        everyAnswerIsRight(new Lm());
    }

    @Test
    void everyAnswerIsRightWhileFilesAreDamaged() throws Exception {
        everyAnswerIsRight(new Fs());
    }
}
