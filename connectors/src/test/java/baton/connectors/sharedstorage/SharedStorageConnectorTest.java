package baton.connectors.sharedstorage;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.RawSafetensors;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class SharedStorageConnectorTest {
    private static final int BLOCK = 16;
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 8, BLOCK, DType.BF16);
    private static final ModelFingerprint MODEL = new ModelFingerprint("tiny", "feed");
    private static final String TOKENS_0_TO_15 = "a257bb96b9c4f2fce086deecb640d4a8";
    private static final String TOKENS_0_TO_31 = "00b8bef8cd5eb677bcc2b75023981bac";

    private final List<FakeEngine> engines = new ArrayList<>();
    private final AtomicInteger requests = new AtomicInteger();

    @TempDir
    Path root;

    @AfterEach
    void closeEngines() throws IOException {
        engines.forEach(FakeEngine::close);
        assertThat(files()).noneMatch(name -> name.startsWith(".baton"));
    }

    @Test
    void isFoundUnderBothNames() {
        for (String name : List.of("SharedStorageConnector", "ExampleConnector")) {
            assertThat(KvConnectors.find(
                            KvTransferConfig.builder(name, KvRole.BOTH).build()))
                    .containsInstanceOf(SharedStorageConnector.class);
        }
    }

    /** Names computed with Python's hashlib; those of 16 and 32 tokens equal vLLM's. */
    @Test
    void entryNamesAreThoseOfVllm() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);

        producer.prefill(counting(17));
        assertThat(entries()).containsExactly(TOKENS_0_TO_15);
        producer.prefill(counting(33));
        assertThat(entries()).containsExactlyInAnyOrder(TOKENS_0_TO_15, TOKENS_0_TO_31);
        producer.prefill(counting(17).withCacheSalt("tenant-1"));
        producer.prefill(counting(17).withLora("ad"));
        producer.prefill(counting(17).withLora("ad").withCacheSalt("tenant-1"));
        assertThat(entries())
                .containsExactlyInAnyOrder(
                        TOKENS_0_TO_15,
                        TOKENS_0_TO_31,
                        "2f391693c042754f9656beecc660b129",
                        "d4508da4e9cae769c211fdbe12cce9b2",
                        "90442e98721be9282d747f4d30a9cc03");
    }

    @Test
    void filesAreThoseOfVllm() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeKvRequest request = counting(33);
        producer.prefill(request);

        for (int layer = 0; layer < LAYOUT.layers(); layer++) {
            RawSafetensors file = RawSafetensors.read(file(TOKENS_0_TO_31, layer));
            assertThat(file.header().get("kv_cache").get("dtype").asString()).isEqualTo("BF16");
            assertThat(file.header().get("kv_cache").get("shape").toString()).isEqualTo("[32,2,16]");
            assertThat(file.data()).isEqualTo(FakeEngine.packedLayer(LAYOUT, request.prompt(), 32, layer));
        }
    }

    @Test
    void nothingIsStoredOfARequestWithLogitsThatAreNotFinite() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeKvRequest request = counting(33);
        producer.discardSavesOf(request);
        producer.prefill(request);

        assertThat(entries()).isEmpty();
    }

    /** The text prompts of vLLM's test_shared_storage_connector_hashes: a new text adds a directory, a known one none. */
    @Test
    void eachDistinctPromptHasADirectory() throws IOException {
        FakeEngine instance = engine(KvRole.BOTH);
        int[] a = FakeKvRequest.counting(100, 40);
        int[] b = FakeKvRequest.counting(500, 40);

        instance.prefill(request(a));
        assertThat(entries()).hasSize(1);
        instance.prefill(request(a));
        assertThat(entries()).hasSize(1);
        instance.prefill(request(b));
        assertThat(entries()).hasSize(2);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 7 * BLOCK + 5})
    void handsOverAllFullBlocksBeforeTheLastToken(int length) throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeEngine consumer = engine(KvRole.CONSUMER);
        int aligned = (length - 1) / BLOCK * BLOCK;
        WorkerReport saved = producer.prefill(counting(length));
        assertThat(entries()).hasSize(aligned == 0 ? 0 : 1);

        Running running = consumer.admit(counting(length), 0);
        assertThat(running.externalTokens()).isEqualTo(aligned);
        WorkerReport loaded = consumer.awaitLoad(running);
        consumer.step(new Share(running, length - aligned));

        assertThat(loaded.invalidBlocks()).isEmpty();
        assertThat(consumer.holds(running, 0, length)).isTrue();
        double bytes = (double) aligned * LAYOUT.tokenBytes();
        assertThat(sum(saved, "baton:kv_save_bytes")).isEqualTo(bytes);
        assertThat(sum(loaded, "baton:kv_load_bytes")).isEqualTo(bytes);
        if (aligned > 0) {
            // The time is the step's wait after its last layer, and may be zero.
            assertThat(saved.measurements()).extracting(Measurement::name).containsOnlyOnce("baton:kv_save");
            assertThat(sum(loaded, "baton:kv_load")).isPositive();
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 5, 16, 33, 100})
    void aChunkedPrefillIsSavedWholeAndOnce(int chunk) throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeEngine consumer = engine(KvRole.CONSUMER);
        int length = 6 * BLOCK + 3;
        Running running = producer.admit(counting(length), 0);
        double saved = 0;
        for (int done = 0; done < length; done += chunk) {
            int tokens = Math.min(chunk, length - done);
            saved += sum(producer.step(new Share(running, tokens)), "baton:kv_save_bytes");
            assertThat(entries()).hasSize(done + tokens >= 6 * BLOCK ? 1 : 0);
        }
        assertThat(saved).isEqualTo(6.0 * LAYOUT.blockBytes());

        assertLoadsWell(consumer, counting(length), 6 * BLOCK);
    }

    @ParameterizedTest
    @ValueSource(ints = {BLOCK, 4 * BLOCK})
    void blocksFromThePrefixCacheAreSavedToo(int local) throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        int length = 4 * BLOCK + 3;
        Running running = producer.admit(counting(length), local);
        producer.step(new Share(running, length - local));

        assertThat(entries()).hasSize(1);
        assertLoadsWell(engine(KvRole.CONSUMER), counting(length), 4 * BLOCK);
    }

    @Test
    void aPreemptedPrefillIsSavedWhenItEnds() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeKvRequest request = counting(5 * BLOCK);
        Running running = producer.admit(request, 0);
        producer.step(new Share(running, 2 * BLOCK + 1));
        producer.free(running);
        producer.step(Set.of(request.id()));
        Running again = producer.admitAgain(request, 0);
        producer.step(new Share(again, 3 * BLOCK));
        assertThat(entries()).isEmpty();
        producer.step(new Share(again, 2 * BLOCK));

        assertThat(entries()).hasSize(1);
        assertLoadsWell(engine(KvRole.CONSUMER), request, 4 * BLOCK);
    }

    @Test
    void theLongestStoredPrefixIsTaken() throws IOException {
        FakeEngine instance = engine(KvRole.BOTH);
        instance.prefill(counting(BLOCK + 1));
        instance.prefill(counting(3 * BLOCK + 1));
        assertThat(entries()).hasSize(2);

        Running running = instance.admit(counting(6 * BLOCK + 2), 0);
        assertThat(running.externalTokens()).isEqualTo(3 * BLOCK);
        instance.awaitLoad(running);
        instance.step(new Share(running, 3 * BLOCK + 2));

        assertThat(instance.holds(running, 0, 6 * BLOCK + 2)).isTrue();
        assertThat(entries()).hasSize(3);
        assertLoadsWell(engine(KvRole.CONSUMER), counting(6 * BLOCK + 2), 6 * BLOCK);
    }

    @Test
    void anExistingEntryIsNotWrittenAgain() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        producer.prefill(counting(40));
        Object written = Files.getLastModifiedTime(root.resolve(TOKENS_0_TO_31));

        assertThat(producer.prefill(counting(40))).isEqualTo(WorkerReport.NOTHING);
        Running first = producer.admit(request(FakeKvRequest.counting(900, 40)), 0);
        Running twin = producer.admit(request(FakeKvRequest.counting(900, 40)), 0);
        WorkerReport both = producer.step(new Share(first, 40), new Share(twin, 40));

        assertThat(Files.getLastModifiedTime(root.resolve(TOKENS_0_TO_31))).isEqualTo(written);
        assertThat(sum(both, "baton:kv_save_bytes")).isEqualTo(2.0 * LAYOUT.blockBytes());
    }

    @Test
    void producersOnlySaveAndConsumersOnlyLoad() throws IOException {
        engine(KvRole.CONSUMER).prefill(counting(40));
        assertThat(entries()).isEmpty();

        FakeEngine producer = engine(KvRole.PRODUCER);
        producer.prefill(counting(40));
        assertThat(entries()).hasSize(1);
        assertThat(producer.admit(counting(40), 0).externalTokens()).isZero();
    }

    @Test
    void cacheSaltAndLoraAdapterSeparateEntries() {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeEngine consumer = engine(KvRole.CONSUMER);
        producer.prefill(counting(40).withCacheSalt("a"));
        producer.prefill(request(FakeKvRequest.counting(900, 40)).withLora("a"));

        assertThat(matched(consumer, counting(40))).isZero();
        assertThat(matched(consumer, counting(40).withCacheSalt("b"))).isZero();
        assertThat(matched(consumer, counting(40).withLora("a"))).isZero();
        assertThat(matched(consumer, counting(40).withCacheSalt("a"))).isEqualTo(32);
        assertThat(matched(consumer, request(FakeKvRequest.counting(900, 40)).withLora("a")))
                .isEqualTo(32);
        assertThat(matched(consumer, request(FakeKvRequest.counting(900, 40)))).isZero();
    }

    @Test
    void aMatchLooksTheDirectoryUpOnce() throws IOException {
        engine(KvRole.PRODUCER).prefill(counting(40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        FakeKvRequest request = counting(40);
        consumer.scheduler().onNewRequest(request);
        KvMatch first = FakeEngine.awaitMatch(consumer.scheduler(), request, 0);
        delete(root.resolve(TOKENS_0_TO_31));

        assertThat(first).isEqualTo(new KvMatch.Tokens(32, true));
        assertThat(FakeEngine.awaitMatch(consumer.scheduler(), request, 0)).isEqualTo(first);
        assertThat(FakeEngine.awaitMatch(consumer.scheduler(), request, 16)).isEqualTo(new KvMatch.None());
        assertThat(FakeEngine.awaitMatch(consumer.scheduler(), request, 32)).isEqualTo(new KvMatch.None());
    }

    @Test
    void aLoadLeavesLocallyComputedBlocksAlone() throws IOException {
        byte[] foreign = new byte[(int) (LAYOUT.entryBytes() * LAYOUT.kvHeads() * 2 * BLOCK)];
        new Random(3).nextBytes(foreign);
        Files.createDirectory(root.resolve(TOKENS_0_TO_31));
        for (int layer = 0; layer < LAYOUT.layers(); layer++) {
            RawSafetensors.write(file(TOKENS_0_TO_31, layer), "kv_cache", "BF16", foreign, 2 * BLOCK, 2, 16);
        }
        FakeEngine consumer = trusting(KvRole.CONSUMER);
        Running running = consumer.admit(counting(2 * BLOCK + 1), BLOCK);
        assertThat(running.externalTokens()).isEqualTo(BLOCK);
        WorkerReport report = consumer.awaitLoad(running);

        assertThat(report.invalidBlocks()).isEmpty();
        assertThat(report.unverified()).containsExactly(running.request().id());
        assertThat(consumer.holds(running, 0, BLOCK)).isTrue();
        int loaded = running.blockTable()[1];
        for (int layer = 0; layer < LAYOUT.layers(); layer++) {
            byte[] block = consumer.cache().layer(loaded, layer).toArray(ValueLayout.JAVA_BYTE);
            int entry = (int) LAYOUT.entryBytes();
            for (int head = 0; head < 2; head++) {
                for (int slot = 0; slot < BLOCK; slot++) {
                    int inBlock = (head * BLOCK + slot) * entry;
                    int inFile = ((BLOCK + slot) * 2 + head) * entry;
                    assertThat(Stream.of(block).map(bytes -> Arrays.copyOfRange(bytes, inBlock, inBlock + entry)))
                            .containsExactly(Arrays.copyOfRange(foreign, inFile, inFile + entry));
                }
            }
        }
    }

    @Test
    void entriesOfAnotherModelAreMissesAndCounted() throws IOException {
        engine(KvRole.PRODUCER).prefill(counting(40));
        FakeEngine other =
                engine(config(KvRole.BOTH), LAYOUT, new ModelFingerprint("other", "f00d"), Ticker.system(), 64);
        FakeEngine wider =
                engine(config(KvRole.BOTH), new KvLayout(3, 2, 4, BLOCK, DType.F32), MODEL, Ticker.system(), 64);

        for (FakeEngine engine : List.of(other, wider)) {
            assertThat(engine.prefill(counting(40))).isEqualTo(WorkerReport.NOTHING);
            // Once as a match, once when it would be stored.
            assertThat(engine.scheduler().takeMeasurements())
                    .containsExactly(Measurement.count("baton:kv_incompatible_entries", 2));
            assertThat(engine.scheduler().takeMeasurements()).isEmpty();
        }
        assertLoadsWell(engine(KvRole.CONSUMER), counting(40), 32);
    }

    @Test
    void foreignEntriesAreMissesUnlessASettingSaysHowTheyAreLaidOut() throws IOException {
        FakeKvRequest request = counting(40);
        Files.createDirectory(root.resolve(TOKENS_0_TO_31));
        for (int layer = 0; layer < LAYOUT.layers(); layer++) {
            byte[] plain = FakeEngine.packedLayer(LAYOUT, request.prompt(), 2 * BLOCK, layer);
            RawSafetensors.write(file(TOKENS_0_TO_31, layer), "kv_cache", "BF16", plain, 2 * BLOCK, 2, 16);
        }
        FakeEngine instance = engine(KvRole.BOTH);

        assertThat(instance.prefill(counting(40))).isEqualTo(WorkerReport.NOTHING);
        // Once as a match, once when it would be stored.
        assertThat(instance.scheduler().takeMeasurements())
                .containsExactly(Measurement.count("baton:kv_foreign_entries", 2, "outcome", "refused"));
        assertThat(instance.scheduler().takeMeasurements()).isEmpty();

        FakeEngine trusting = trusting(KvRole.CONSUMER);
        assertLoadsWell(trusting, request, 32);
        assertThat(trusting.scheduler().takeMeasurements())
                .containsExactly(Measurement.count("baton:kv_foreign_entries", 1, "outcome", "taken"));
        assertThat(trusting.scheduler().takeMeasurements()).isEmpty();
    }

    /** vLLM on CPUs has blocks of at least 32 tokens, and looks for entries of whole blocks of its own. */
    @Test
    void entriesAreWrittenForAReaderWithOtherBlocks() throws IOException {
        KvLayout layout = new KvLayout(3, 2, 32, BLOCK, DType.BF16);
        FakeEngine producer = engine(
                builder(KvRole.PRODUCER)
                        .extra("shared_storage_path", root)
                        .extra("shared_storage_write_layout", "cpu_attn_amx")
                        .extra("shared_storage_foreign_block_size", 32)
                        .build(),
                layout,
                MODEL,
                Ticker.system(),
                64);
        FakeKvRequest request = counting(50);
        producer.prefill(request);

        assertThat(entries()).containsExactly(TOKENS_0_TO_31);
        assertThat(RawSafetensors.read(file(TOKENS_0_TO_31, 1)).data())
                .isNotEqualTo(FakeEngine.packedLayer(layout, request.prompt(), 32, 1));
        assertLoadsWell(engine(config(KvRole.CONSUMER), layout, MODEL, Ticker.system(), 64), counting(50), 32);
        producer.prefill(counting(20));
        assertThat(entries()).hasSize(1);
    }

    @Test
    void aLoadThatFailsInvalidatesItsBlocksAndNoOthers() throws IOException {
        Random random = new Random(11);
        Map<String, Damage> damages = Map.of(
                "missing", directory -> delete(directory),
                "damaged",
                        directory -> {
                            Path file = directory.resolve("model.layers.1.self_attn.attn.safetensors");
                            byte[] bytes = Files.readAllBytes(file);
                            Files.write(file, Arrays.copyOf(bytes, random.nextInt(bytes.length)));
                        },
                "digest",
                        directory -> {
                            Path file = directory.resolve("model.layers.2.self_attn.attn.safetensors");
                            byte[] bytes = Files.readAllBytes(file);
                            bytes[bytes.length - 1 - random.nextInt(1024)] ^= 0x10;
                            Files.write(file, bytes, StandardOpenOption.TRUNCATE_EXISTING);
                        });
        for (Map.Entry<String, Damage> damage : damages.entrySet()) {
            FakeEngine instance = engine(KvRole.BOTH);
            FakeKvRequest hurt = counting(40);
            int[] otherPrompt = FakeKvRequest.counting(900, 40);
            instance.prefill(counting(40));
            instance.prefill(request(otherPrompt));

            Running running = instance.admit(hurt, 0);
            Running other = instance.admit(request(otherPrompt), 0);
            assertThat(running.externalTokens()).isEqualTo(32);
            damage.getValue().apply(root.resolve(TOKENS_0_TO_31));
            WorkerReport report = instance.awaitLoad(running);
            instance.awaitLoad(other);
            instance.step(new Share(other, 8));

            assertThat(report.invalidBlocks()).as(damage.getKey()).isEqualTo(running.externalBlocks(BLOCK));
            assertThat(report.measurements())
                    .contains(Measurement.count("baton:kv_load_failures", 1, "cause", damage.getKey()));
            assertThat(instance.holds(other, 0, 40)).isTrue();

            // The request is recomputed without being matched again, and the broken entry is replaced.
            assertThat(FakeEngine.awaitMatch(instance.scheduler(), hurt, 0)).isEqualTo(new KvMatch.None());
            assertThat(running.computedTokens()).isZero();
            assertThat(instance.step(new Share(running, 40)).invalidBlocks()).isEmpty();
            assertLoadsWell(engine(KvRole.CONSUMER), counting(40), 32);
            delete(root.resolve(TOKENS_0_TO_31));
        }
    }

    @Test
    void entriesFoundBrokenAreMissesAndCounted() throws IOException {
        FakeEngine instance = engine(KvRole.CONSUMER);
        engine(KvRole.PRODUCER).prefill(counting(40));
        Path file = root.resolve(TOKENS_0_TO_31).resolve("model.layers.1.self_attn.attn.safetensors");
        Files.delete(file);

        assertThat(FakeEngine.awaitMatch(instance.scheduler(), counting(40), 0)).isEqualTo(new KvMatch.None());
        assertThat(instance.scheduler().takeMeasurements())
                .containsExactly(Measurement.count("baton:kv_broken_entries", 1));
        assertThat(instance.scheduler().takeMeasurements()).isEmpty();
    }

    @Test
    void aPromptWithAFailedLoadIsStoredWhenItIsComputed() throws IOException {
        FakeEngine instance = engine(KvRole.BOTH);
        instance.prefill(counting(2 * BLOCK + 1));
        Running running = instance.admit(counting(4 * BLOCK + 1), 0);
        assertThat(running.externalTokens()).isEqualTo(2 * BLOCK);
        delete(root.resolve(TOKENS_0_TO_31));
        WorkerReport report = instance.awaitLoad(running);

        assertThat(report.invalidBlocks()).isEqualTo(running.externalBlocks(BLOCK));
        assertThat(entries()).isEmpty();

        instance.step(new Share(running, 4 * BLOCK + 1));
        assertThat(entries()).hasSize(1);
        assertLoadsWell(engine(KvRole.CONSUMER), counting(4 * BLOCK + 1), 4 * BLOCK);
    }

    @Test
    void aStepThatEndsEarlyStoresNothing() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        Running running = producer.admit(counting(40), 0);
        var metadata = producer.scheduler()
                .buildMetadata(new SchedulerConnector.ScheduledStep(
                        List.of(new SchedulerConnector.ScheduledRequest(
                                running.request(), running.blockTable(), 0, 40)),
                        Set.of(),
                        Set.of()));
        producer.worker().startLoad(metadata);
        producer.worker().saveLayer(0);
        producer.worker().waitForSave();

        assertThat(producer.worker().report(Set.of()).measurements())
                .containsExactly(Measurement.count("baton:kv_save_failures", 1, "cause", "abandoned"));
        assertThat(entries()).doesNotContain(TOKENS_0_TO_31);
    }

    @Test
    void afterTheDeadlineALoadLeavesThePoolAlone() throws IOException {
        // Layers of 32 MiB, so that the load is still under way when the deadline has passed.
        KvLayout large = new KvLayout(6, 64, 512, BLOCK, DType.BF16);
        int tokens = 16 * BLOCK;
        FakeKvRequest request = counting(tokens + 1);
        Path directory = Files.createDirectory(root.resolve(EntryNames.of(request, tokens)));
        for (int layer = 0; layer < large.layers(); layer++) {
            Path file = directory.resolve("model.layers." + layer + ".self_attn.attn.safetensors");
            long bytes = large.layerBytes() * 16;
            RawSafetensors.writeHeader(
                    file,
                    "{\"kv_cache\":{\"dtype\":\"BF16\",\"shape\":[%d,64,1024],\"data_offsets\":[0,%d]}}"
                            .formatted(tokens, bytes),
                    new byte[0]);
            try (RandomAccessFile sparse = new RandomAccessFile(file.toFile(), "rw")) {
                sparse.setLength(sparse.length() + bytes);
            }
        }
        LeapingTicker ticker = new LeapingTicker();
        FakeEngine consumer = engine(
                builder(KvRole.CONSUMER)
                        .extra("shared_storage_path", root)
                        .extra("shared_storage_foreign_layout", "gpu")
                        .build(),
                large,
                MODEL,
                ticker,
                18);
        consumer.cache().host().fill((byte) 0x55);
        Running running = consumer.admit(request, 0);
        ticker.leap();
        WorkerReport report = consumer.awaitLoad(running);
        consumer.cache().host().fill((byte) 0x55);
        consumer.worker().close();

        assertThat(report.invalidBlocks()).isEqualTo(running.externalBlocks(BLOCK));
        assertThat(report.measurements())
                .containsExactly(Measurement.count("baton:kv_load_failures", 1, "cause", "timeout"));
        byte[] expected = new byte[1 << 20];
        Arrays.fill(expected, (byte) 0x55);
        for (long at = 0; at < consumer.cache().host().byteSize(); at += expected.length) {
            assertThat(consumer.cache().host().asSlice(at, expected.length).toArray(ValueLayout.JAVA_BYTE))
                    .isEqualTo(expected);
        }
    }

    @Test
    void afterTheDeadlineASaveIsDropped() throws IOException {
        KvLayout large = new KvLayout(6, 64, 512, BLOCK, DType.BF16);
        LeapingTicker ticker = new LeapingTicker();
        FakeEngine producer = engine(config(KvRole.PRODUCER), large, MODEL, ticker, 18);
        FakeKvRequest request = counting(16 * BLOCK + 1);
        // For the connector the tokens are from the prefix cache, so that the fake need not compute hundreds of
        // megabytes.
        Running running = producer.admit(request, 0);
        ticker.leap();
        WorkerReport report = startAndWait(producer, running, 16 * BLOCK);
        producer.worker().close();

        assertThat(report.measurements())
                .containsExactly(Measurement.count("baton:kv_save_failures", 1, "cause", "timeout"));
        assertThat(files()).isEmpty();
    }

    @Test
    void producersOfOnePromptLeaveOneGoodEntry() throws Exception {
        List<Callable<WorkerReport>> tasks = new ArrayList<>();
        for (int i = 0; i < 6; i++) {
            FakeEngine producer = engine(KvRole.PRODUCER);
            tasks.add(() -> producer.prefill(counting(100)));
        }
        try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
            for (Future<WorkerReport> result : executor.invokeAll(tasks)) {
                assertThat(sum(result.get(), "baton:kv_save_failures")).isZero();
            }
        }
        assertThat(entries()).hasSize(1);
        assertLoadsWell(engine(KvRole.CONSUMER), counting(100), 96);
    }

    @Test
    void aFullDiskStopsNoRequest() throws Exception {
        Path small = Files.createDirectory(root.resolve("small"));
        assumeTrue(
                run("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small.toString()) == 0,
                "mounting a tmpfs takes root and CAP_SYS_ADMIN");
        try {
            FakeEngine producer = engine(config(KvRole.PRODUCER, small), LAYOUT, MODEL, Ticker.system(), 64);
            for (int i = 0; i < 3; i++) {
                Running running = producer.admit(counting(10 * BLOCK), 0);
                WorkerReport report = producer.step(new Share(running, 10 * BLOCK));

                assertThat(report.measurements())
                        .containsExactly(Measurement.count("baton:kv_save_failures", 1, "cause", "no_space"));
                assertThat(producer.holds(running, 0, 10 * BLOCK)).isTrue();
                producer.finish(running);
                try (Stream<Path> left = Files.list(small)) {
                    assertThat(left).isEmpty();
                }
            }
        } finally {
            assertThat(run("umount", small.toString())).isZero();
        }
    }

    /** Two instances, prompts with common prefixes, any chunking, any cached prefix, and files damaged at random. */
    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5, 6})
    void withDamagedFilesTheKvIsRightOrReportedInvalid(long seed) throws IOException {
        Random random = new Random(seed);
        List<FakeEngine> instances = List.of(engine(KvRole.BOTH), engine(KvRole.BOTH));
        int loaded = 0;
        int failed = 0;
        for (int round = 0; round < 120; round++) {
            FakeEngine instance = instances.get(random.nextInt(2));
            List<Running> batch = new ArrayList<>();
            for (int i = random.nextInt(3); i >= 0; i--) {
                FakeKvRequest request =
                        request(FakeKvRequest.counting(1000 * random.nextInt(3), 1 + random.nextInt(90)));
                int aligned = EntryNames.aligned(request.promptLength(), BLOCK);
                int cached = random.nextBoolean() ? 0 : random.nextInt(aligned / BLOCK + 1) * BLOCK;
                Running running = instance.admit(request, cached);
                loaded += running.externalTokens() > 0 ? 1 : 0;
                batch.add(running);
            }
            if (random.nextInt(3) == 0) {
                damageAFile(random);
            }
            for (Running running : batch) {
                failed += instance.awaitLoad(running).invalidBlocks().isEmpty() ? 0 : 1;
            }
            for (Running running : batch) {
                assertThat(instance.holds(running, 0, running.computedTokens()))
                        .as("seed %d, round %d", seed, round)
                        .isTrue();
            }
            while (!batch.isEmpty()) {
                Share[] shares = batch.stream()
                        .map(running -> new Share(running, 1 + random.nextInt(running.remainingTokens())))
                        .toArray(Share[]::new);
                assertThat(instance.step(shares).invalidBlocks()).isEmpty();
                for (Running running : List.copyOf(batch)) {
                    assertThat(instance.holds(running, 0, running.computedTokens()))
                            .as("seed %d, round %d", seed, round)
                            .isTrue();
                    if (running.remainingTokens() == 0) {
                        batch.remove(running);
                        instance.finish(running);
                    }
                }
            }
        }
        assertThat(loaded).isGreaterThan(20);
        assertThat(failed).isPositive();
    }

    private void damageAFile(Random random) throws IOException {
        List<String> names = new ArrayList<>(entries());
        if (names.isEmpty()) {
            return;
        }
        Collections.sort(names);
        Path file = file(names.get(random.nextInt(names.size())), random.nextInt(LAYOUT.layers()));
        if (!Files.exists(file)) {
            return;
        }
        byte[] bytes = Files.readAllBytes(file);
        switch (random.nextInt(3)) {
            case 0 -> Files.delete(file);
            case 1 -> Files.write(file, Arrays.copyOf(bytes, random.nextInt(bytes.length)));
            case 2 -> {
                bytes[bytes.length - 1 - random.nextInt(512)] ^= 1;
                Files.write(file, bytes);
            }
            default -> throw new AssertionError();
        }
    }

    @Test
    void settingsThatCannotWorkAreRefused() throws IOException {
        SharedStorageConnector connector = new SharedStorageConnector();
        Path file = Files.createFile(root.resolve("file"));
        assertRefused(
                connector,
                builder(KvRole.BOTH).extra("shared_storage_path", file).build(),
                "kv_connector_extra_config.shared_storage_path: is " + file + ", which is not a directory");
        assertRefused(
                connector,
                builder(KvRole.BOTH).extra("shared_storage_path", " ").build(),
                "kv_connector_extra_config.shared_storage_path: must not be empty");
        assertRefused(
                connector,
                builder(KvRole.BOTH).extra("shared_storage_path", 5).build(),
                "kv_connector_extra_config.shared_storage_path: must be a string, is 5");
        assertRefused(
                connector,
                builder(KvRole.BOTH).extra("shared_storage_timeout_seconds", 0).build(),
                "kv_connector_extra_config.shared_storage_timeout_seconds: is 0.0, must be more than 0 and at most 86400");
        assertRefused(
                connector,
                builder(KvRole.BOTH)
                        .extra("shared_storage_foreign_layout", "cpu_attn")
                        .build(),
                "kv_connector_extra_config.shared_storage_foreign_layout: unsupported value 'cpu_attn'; allowed: gpu,"
                        + " cpu_attn_vec, cpu_attn_amx, cpu_attn_neon_bf16");
        assertRefused(
                connector,
                builder(KvRole.BOTH)
                        .extra("shared_storage_write_layout", "cpu_attn_amx")
                        .build(),
                "kv_connector_extra_config.shared_storage_write_layout: is cpu_attn_amx, which takes blocks of a multiple of"
                        + " 32 tokens, at most 4096; the block size given is 16");
        assertRefused(
                connector,
                builder(KvRole.BOTH)
                        .extra("shared_storage_foreign_block_size", 24)
                        .build(),
                "kv_connector_extra_config.shared_storage_foreign_block_size: is 24, must be a multiple of this instance's"
                        + " --block-size, 16");
        SharedStorageSettings defaults = SharedStorageSettings.of(
                new ConnectorContext(builder(KvRole.BOTH).build(), MODEL, LAYOUT, Ticker.system()));
        assertThat(defaults.root()).isEqualTo(Path.of("/tmp"));
        assertThat(defaults.timeout()).isEqualTo(Duration.ofSeconds(60));
    }

    @Test
    void theSearchForPrefixesIsBounded() {
        FakeKvRequest request = counting(40_001);
        List<EntryNames.Candidate> candidates = EntryNames.candidates(request, 0, 40_000, BLOCK);

        assertThat(candidates).hasSize(EntryNames.MAX_CANDIDATES);
        assertThat(candidates.getFirst().tokens()).isEqualTo(40_000);
        assertThat(candidates.getLast()).isEqualTo(new EntryNames.Candidate(TOKENS_0_TO_15, 16));
        assertThat(candidates)
                .isSortedAccordingTo(
                        Comparator.comparingInt(EntryNames.Candidate::tokens).reversed());
        assertThat(EntryNames.candidates(request, 39_968, 40_000, BLOCK))
                .extracting(EntryNames.Candidate::tokens)
                .containsExactly(40_000, 39_984);
    }

    private interface Damage {
        void apply(Path directory) throws IOException;
    }

    /** A clock on which, from a moment on, a minute and more pass between any two readings. */
    private static final class LeapingTicker implements Ticker {
        private final AtomicLong nanos = new AtomicLong();
        private volatile boolean leaps;

        private void leap() {
            leaps = true;
        }

        @Override
        public long nanos() {
            return nanos.addAndGet(leaps ? Duration.ofSeconds(61).toNanos() : 1);
        }
    }

    /** One step of the given tokens in which nothing is computed. */
    private static WorkerReport startAndWait(FakeEngine engine, Running running, int tokens) {
        engine.worker()
                .startLoad(engine.scheduler()
                        .buildMetadata(new SchedulerConnector.ScheduledStep(
                                List.of(new SchedulerConnector.ScheduledRequest(
                                        running.request(), running.blockTable(), running.externalTokens(), tokens)),
                                Set.of(),
                                Set.of())));
        for (int layer = 0; layer < engine.cache().layout().layers(); layer++) {
            engine.worker().waitForLayerLoad(layer);
            engine.worker().saveLayer(layer);
        }
        engine.worker().waitForSave();
        return engine.worker().report(Set.of());
    }

    private void assertLoadsWell(FakeEngine consumer, FakeKvRequest prompt, int tokens) {
        FakeKvRequest request = request(prompt.prompt());
        Running running = consumer.admit(request, 0);
        assertThat(running.externalTokens()).isEqualTo(tokens);
        assertThat(consumer.awaitLoad(running).invalidBlocks()).isEmpty();
        consumer.step(new Share(running, request.promptLength() - tokens));
        assertThat(consumer.holds(running, 0, request.promptLength())).isTrue();
        consumer.finish(running);
    }

    private static int matched(FakeEngine consumer, FakeKvRequest request) {
        Running running = consumer.admit(request, 0);
        consumer.finish(running);
        return running.externalTokens();
    }

    private FakeKvRequest counting(int length) {
        return request(FakeKvRequest.counting(0, length));
    }

    private FakeKvRequest request(int[] prompt) {
        return new FakeKvRequest("request-" + requests.incrementAndGet(), prompt, BLOCK);
    }

    /** Takes foreign entries for those of vLLM's GPU backends. */
    private FakeEngine trusting(KvRole role) {
        return engine(
                builder(role)
                        .extra("shared_storage_path", root)
                        .extra("shared_storage_foreign_layout", "gpu")
                        .build(),
                LAYOUT,
                MODEL,
                Ticker.system(),
                64);
    }

    private FakeEngine engine(KvRole role) {
        return engine(config(role), LAYOUT, MODEL, Ticker.system(), 64);
    }

    private FakeEngine engine(
            KvTransferConfig config, KvLayout layout, ModelFingerprint model, Ticker ticker, int blocks) {
        FakeEngine engine = new FakeEngine(
                new SharedStorageConnector(), new ConnectorContext(config, model, layout, ticker), blocks);
        engines.add(engine);
        return engine;
    }

    private KvTransferConfig config(KvRole role) {
        return config(role, root);
    }

    private static KvTransferConfig config(KvRole role, Path path) {
        return builder(role).extra("shared_storage_path", path).build();
    }

    private static KvTransferConfig.Builder builder(KvRole role) {
        return KvTransferConfig.builder("SharedStorageConnector", role);
    }

    private static void assertRefused(SharedStorageConnector connector, KvTransferConfig config, String message) {
        ConnectorContext context = new ConnectorContext(config, MODEL, LAYOUT, Ticker.system());
        assertThatThrownBy(() -> connector.scheduler(context))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
        assertThatThrownBy(() -> connector.worker(context, Rank.FIRST))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    private static double sum(WorkerReport report, String name) {
        return report.measurements().stream()
                .filter(measurement -> measurement.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    private Path file(String entry, int layer) {
        return root.resolve(entry).resolve("model.layers." + layer + ".self_attn.attn.safetensors");
    }

    /** Entries that a reader can find; a save that has timed out may still be deleting its temporary files. */
    private List<String> entries() throws IOException {
        return files().stream().filter(name -> !name.startsWith(".")).toList();
    }

    private List<String> files() throws IOException {
        try (Stream<Path> list = Files.list(root)) {
            return list.map(path -> path.getFileName().toString()).toList();
        }
    }

    private static void delete(Path path) throws IOException {
        try (Stream<Path> tree = Files.walk(path)) {
            for (Path each : tree.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(each);
            }
        }
    }

    private static int run(String... command) throws InterruptedException {
        try {
            return new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start()
                    .waitFor();
        } catch (IOException e) {
            return -1;
        }
    }
}
