package baton.connectors.lmcache;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.ChunkHashing;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.HashAlgorithm;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.store.redis.RedisServer;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Against the published LMCache: the environment variable {@code BATON_LMCACHE_PYTHON} names a Python with its package (and {@code redis},
 * {@code aiofiles} and vLLM's package, which LMCache takes its hash functions from).
 */
class LmCachePeerTest {
    private static final Optional<String> PYTHON = Optional.ofNullable(System.getenv("BATON_LMCACHE_PYTHON"));
    private static final Map<String, String> ENVIRONMENT = Map.of("PYTHONHASHSEED", "0");
    private static final Duration PATIENCE = Duration.ofMinutes(1);
    private static final int CHUNK = 32;
    private static final int BLOCK = 16;
    private static final int RANKS = 2;
    private static final KvLayout MODEL = new KvLayout(3, 4, 8, BLOCK, DType.BF16);
    private static final KvLayout RANK = new KvLayout(3, 2, 8, BLOCK, DType.BF16);
    private static final int[] PROMPT = IntStream.range(1000, 1075).toArray();

    @TempDir
    private Path directory;

    private int requests;

    @BeforeAll
    static void requireLmcache() throws Exception {
        assumeTrue(PYTHON.isPresent(), "BATON_LMCACHE_PYTHON names no Python with package lmcache");
        InstalledProgram.assumeModules(Path.of(PYTHON.orElseThrow()), "lmcache", "redis", "aiofiles", "vllm");
        RedisServer.assumeInstalled();
    }

    private static FakeEngine engine(String model, String url) {
        KvTransferConfig config = KvTransferConfig.builder("LMCacheConnectorV1", KvRole.BOTH)
                .extra("lmcache.chunk_size", CHUNK)
                .extra("lmcache.max_local_cpu_size", 0.01)
                .extra("lmcache.pre_caching_hash_algorithm", "sha256_cbor")
                .extra("lmcache.baton_model_name", model)
                .extra("lmcache.remote_url", url)
                .build();
        return new FakeEngine(
                LmCacheConnector.withEnvironment(ENVIRONMENT),
                new ConnectorContext(
                        config, new ModelFingerprint("tiny", "feed"), RANK, MODEL, RANKS, 1, Ticker.system()),
                64);
    }

    private FakeKvRequest request() {
        return new FakeKvRequest("r" + requests++, PROMPT, BLOCK);
    }

    private static void until(FakeEngine engine, KvMatch wanted, Supplier<FakeKvRequest> requests) {
        Deadline deadline = Deadline.after(Ticker.system(), PATIENCE);
        while (true) {
            FakeKvRequest request = requests.get();
            engine.scheduler().onNewRequest(request);
            KvMatch match = FakeEngine.awaitMatch(engine.scheduler(), request, 0);
            engine.scheduler().onFinished(request, RequestEnd.ABORTED, new int[0]);
            if (match.equals(wanted)) {
                return;
            }
            assertThat(deadline.isOver()).as("%s after %s", match, deadline).isFalse();
            LockSupport.parkNanos(1_000_000);
        }
    }

    /** Values put before are lost. */
    private static void untilConnected(FakeEngine engine, String url) {
        Deadline deadline = Deadline.after(Ticker.system(), PATIENCE);
        while (!url.startsWith("fs:")
                && engine.scheduler().takeMeasurements().stream()
                        .noneMatch(each -> each.name().equals("baton:kv_store_connections") && each.value() > 2)) {
            assertThat(deadline.isOver()).as("not connected to " + url).isFalse();
            LockSupport.parkNanos(1_000_000);
        }
    }

    /** The bytes of a rank's share of a chunk, number by number as {@code KV_2LTD} is defined. */
    private static byte[] reference(KvCache pool, int[] blocks, int chunk) {
        int element = RANK.dtype().bytes();
        int hidden = RANK.kvHeads() * RANK.headDim();
        byte[] object = new byte[2 * RANK.layers() * CHUNK * hidden * element];
        int at = 0;
        for (int kv = 0; kv < 2; kv++) {
            for (int layer = 0; layer < RANK.layers(); layer++) {
                for (int token = chunk * CHUNK; token < (chunk + 1) * CHUNK; token++) {
                    MemorySegment block = pool.block(blocks[token / BLOCK]);
                    for (int head = 0; head < RANK.kvHeads(); head++) {
                        long entry = RANK.entryOffset(layer, head, token % BLOCK) + kv * RANK.entryBytes() / 2;
                        for (int i = 0; i < RANK.headDim() * element; i++) {
                            object[at++] = block.get(ValueLayout.JAVA_BYTE, entry + i);
                        }
                    }
                }
            }
        }
        return object;
    }

    @Test
    void lmCacheAndBatonReadEachOthersObjects() throws Exception {
        int lm = FreePorts.inARow(1);
        InstalledProgram server = lmcacheServer(lm);
        try (RedisServer redis = RedisServer.start(directory)) {
            List<String> urls = List.of(redis.url(), "lm://127.0.0.1:" + lm, "fs://host:0" + directory.resolve("fs"));
            List<byte[]> objects = new ArrayList<>();
            for (String url : urls) {
                objects = computedAndStored(url);
            }
            JsonNode result = python(urls, objects);
            for (int i = 0; i < urls.size(); i++) {
                assertThat(result.get("stores").get(i).toString())
                        .as(urls.get(i))
                        .isEqualTo(expected(objects));
            }
            hashesAreEqual(result.get("hashes"));
            for (String url : urls) {
                loaded(url);
            }
        } finally {
            server.kill();
        }
    }

    /** A prompt is computed, and its chunks put at the store; gives the objects, rank by rank. */
    private List<byte[]> computedAndStored(String url) {
        List<byte[]> objects = new ArrayList<>();
        try (FakeEngine engine = engine("org/ours", url)) {
            untilConnected(engine, url);
            Running running = engine.admit(request(), 0);
            engine.step(new Share(running, running.remainingTokens()));
            for (int rank = 0; rank < RANKS; rank++) {
                for (int chunk = 0; chunk < 2; chunk++) {
                    objects.add(reference(engine.caches().get(rank), running.blockTable(), chunk));
                }
            }
            engine.end(running, RequestEnd.LENGTH);
            while (engine.usedBlocks() > 0) {
                engine.idleStep();
            }
            try (FakeEngine other = engine("org/ours", url)) {
                until(other, new KvMatch.Tokens(2 * CHUNK, true), this::request);
            }
        }
        return objects;
    }

    /** LMCache's stored values are loaded, and right. */
    private void loaded(String url) {
        try (FakeEngine engine = engine("org/theirs", url)) {
            until(engine, new KvMatch.Tokens(2 * CHUNK, true), this::request);
            Running running = engine.admit(request(), 0);
            while (running.isLoading()) {
                engine.idleStep();
            }
            assertThat(running.externalTokens()).as(url).isEqualTo(2 * CHUNK);
            assertThat(engine.holds(running, 0, 2 * CHUNK)).as(url).isTrue();
            engine.resume(running);
            engine.step(new Share(running, running.remainingTokens()));
            engine.end(running, RequestEnd.LENGTH);
            while (engine.usedBlocks() > 0) {
                engine.idleStep();
            }
        }
    }

    private static String expected(List<byte[]> objects) throws Exception {
        List<String> keys = hashes(ChunkHashing.digest(HashAlgorithm.SHA256_CBOR, "0"), PROMPT);
        List<List<Object>> all = new ArrayList<>();
        for (int rank = 0; rank < RANKS; rank++) {
            for (int chunk = 0; chunk < 2; chunk++) {
                all.add(List.of(
                        "org/ours@2@%d@%s@bfloat16".formatted(rank, keys.get(chunk)),
                        List.of(2, RANK.layers(), CHUNK, RANK.kvHeads() * RANK.headDim()),
                        "torch.bfloat16",
                        "KV_2LTD",
                        HexFormat.of()
                                .formatHex(
                                        MessageDigest.getInstance("SHA-256").digest(objects.get(2 * rank + chunk)))));
            }
        }
        return JsonMapper.builder().build().writeValueAsString(all);
    }

    private static List<int[]> randomTokens() {
        Random random = new Random(5);
        List<int[]> all = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            // Of all lengths of Python's encodings.
            all.add(random.ints(random.nextInt(200), 0, 1 << random.nextInt(1, 31))
                    .toArray());
        }
        return all;
    }

    private static List<String> hashes(ChunkHashing hashing, int[] tokens) {
        List<String> hashes = new ArrayList<>();
        long parent = hashing.first();
        for (int from = 0; from + CHUNK <= tokens.length; from += CHUNK) {
            parent = hashing.next(parent, tokens, from, CHUNK);
            hashes.add(hashing.isSigned() ? Long.toString(parent, 16) : Long.toHexString(parent));
        }
        return hashes;
    }

    private static void hashesAreEqual(JsonNode expected) {
        for (String algorithm : expected.propertyNames()) {
            List<int[]> tokens = randomTokens();
            LmCacheSettings.Hashes hashes = switch (algorithm) {
                case "builtin" -> LmCacheSettings.Hashes.BUILTIN;
                case "sha256" -> LmCacheSettings.Hashes.SHA256;
                default -> LmCacheSettings.Hashes.SHA256_CBOR;
            };
            for (int i = 0; i < tokens.size(); i++) {
                List<String> keys = new ArrayList<>();
                expected.get(algorithm).get(i).forEach(key -> keys.add(key.asString()));
                assertThat(hashes(hashes.open(ENVIRONMENT), tokens.get(i)).stream()
                                .map(hash -> "m@2@0@" + hash + "@bfloat16"))
                        .as(algorithm)
                        .containsExactlyElementsOf(keys);
            }
        }
    }

    private JsonNode python(List<String> urls, List<byte[]> objects) throws Exception {
        Path script = directory.resolve("lmcache_peer.py");
        try (InputStream in = Objects.requireNonNull(LmCachePeerTest.class.getResourceAsStream("lmcache_peer.py"))) {
            Files.copy(in, script);
        }
        Path files = Files.createDirectory(directory.resolve("objects"));
        for (int i = 0; i < objects.size(); i++) {
            Files.write(files.resolve(i / 2 + "-" + i % 2), objects.get(i));
        }
        JsonMapper mapper = JsonMapper.builder().build();
        Path asked = directory.resolve("asked.json");
        Files.writeString(
                asked,
                mapper.writeValueAsString(Map.of(
                        "chunk_size",
                        CHUNK,
                        "tokens",
                        randomTokens(),
                        "prompt",
                        PROMPT,
                        "shape",
                        Map.of("layers", RANK.layers(), "heads", RANK.kvHeads(), "head_size", RANK.headDim()),
                        "world_size",
                        RANKS,
                        "urls",
                        urls,
                        "ours",
                        "org/ours",
                        "theirs",
                        "org/theirs",
                        "objects",
                        files.toString())));
        ProcessBuilder builder = new ProcessBuilder(PYTHON.orElseThrow(), script.toString(), asked.toString())
                .directory(directory.toFile())
                .redirectError(directory.resolve("errors").toFile());
        builder.environment().putAll(ENVIRONMENT);
        Process process = builder.start();
        try (var out = process.inputReader()) {
            List<String> lines = out.lines().toList();
            assertThat(process.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS)).isTrue();
            Optional<String> result =
                    lines.stream().filter(line -> line.startsWith("RESULT ")).findFirst();
            assertThat(result).as(() -> lines + "\n" + errors()).isPresent();
            return mapper.readTree(result.orElseThrow().substring("RESULT ".length()));
        } finally {
            process.destroyForcibly();
        }
    }

    private String errors() {
        try {
            return Files.readString(directory.resolve("errors"));
        } catch (IOException e) {
            return e.toString();
        }
    }

    private InstalledProgram lmcacheServer(int port) throws IOException {
        return InstalledProgram.start(
                        directory.resolve("server"),
                        List.of(PYTHON.orElseThrow(), "-m", "lmcache.v1.server", "127.0.0.1", Integer.toString(port)))
                .awaitListening(port);
    }
}
