package baton.store.lm;

import static baton.store.remote.StoredValues.quiet;
import static baton.store.remote.StoredValues.soon;
import static baton.store.remote.StoredValues.until;
import static baton.store.remote.StoredValues.within;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.StoreTask;
import baton.store.remote.RemoteLimits;
import baton.store.remote.StallingProxy;
import baton.store.remote.StoredValues;
import baton.testkit.Certificates;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LmClientTest {
    @TempDir
    private Path directory;

    @AutoClose
    private final Arena arena = Arena.ofShared();

    private final Random random = new Random(21);

    static LmClient connected(int port) {
        LmClient client = LmClient.open(LmBlockStoreTest.settings(port), Ticker.system());
        untilConnected(client);
        return client;
    }

    static void untilConnected(LmClient client) {
        until("connected", client::isConnected);
    }

    private static MemorySegment random(Arena arena, Random random, int bytes) {
        byte[] value = new byte[bytes];
        random.nextBytes(value);
        return arena.allocate(Math.max(1, bytes), 64).asSlice(0, bytes).copyFrom(MemorySegment.ofArray(value));
    }

    /** Values of sizes around those at which they are treated differently, in one piece and in several. */
    static void putsFindsAndGets(LmClient client, Arena arena) {
        Random random = new Random(4);
        int[] sizes = {1, 35, 8192, 8193, 65_536, 131_072 - 36, 1 << 20, (1 << 20) + 1, 3_000_001};
        List<LmClient.Put> puts = new ArrayList<>();
        List<LmClient.Get> gets = new ArrayList<>();
        List<MemorySegment> read = new ArrayList<>();
        for (int size : sizes) {
            MemorySegment value = random(arena, random, size);
            int cut = size / 3;
            String key = "m@1@0@%x@bfloat16".formatted(random.nextLong());
            puts.add(new LmClient.Put(
                    key, new LmMetadata(1, 3, 2, 1, size, 1), List.of(value.asSlice(0, cut), value.asSlice(cut))));
            MemorySegment into = arena.allocate(size + 10L, 64);
            read.add(into);
            gets.add(new LmClient.Get(key, List.of(into.asSlice(0, size / 2), into.asSlice(size / 2))));
        }
        List<String> keys = puts.stream().map(LmClient.Put::key).toList();
        assertThat(quiet(client.contains(keys, soon())).succeededCount()).isZero();
        assertThat(quiet(client.put(puts, soon())).succeededCount()).isEqualTo(sizes.length);
        assertThat(quiet(client.contains(keys, soon())).succeededCount()).isEqualTo(sizes.length);
        LmClient.Reads reads = client.get(gets, soon());
        assertThat(quiet(reads.task()).succeededCount()).isEqualTo(sizes.length);
        for (int i = 0; i < sizes.length; i++) {
            assertThat(reads.value(i)).contains(new LmClient.Value(new LmMetadata(1, 3, 2, 1, sizes[i], 1), sizes[i]));
            MemorySegment whole = arena.allocate(sizes[i]);
            MemorySegment.copy(puts.get(i).from().get(0), 0, whole, 0, sizes[i] / 3);
            MemorySegment.copy(puts.get(i).from().get(1), 0, whole, sizes[i] / 3, sizes[i] - sizes[i] / 3);
            assertThat(read.get(i).asSlice(0, sizes[i]).mismatch(whole)).isEqualTo(-1);
            assertThat(read.get(i).get(ValueLayout.JAVA_BYTE, sizes[i])).isZero();
        }
    }

    @Test
    void valuesOfAllSizesComeBackWithTheirMetadata() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmClient client = connected(server.port())) {
            putsFindsAndGets(client, arena);
        }
    }

    @Test
    void manyKeysAreFoundAmongMissingOnesInTheirOrder() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmClient client = connected(server.port())) {
            MemorySegment value = random(arena, random, 100);
            List<String> keys = IntStream.range(0, 5000)
                    .mapToObj(i -> "m@1@0@%x@half".formatted(i * 7919L))
                    .toList();
            List<LmClient.Put> puts = IntStream.range(0, 5000)
                    .filter(i -> i % 3 == 0)
                    .mapToObj(i -> new LmClient.Put(keys.get(i), LmMetadata.bytes(100), List.of(value)))
                    .toList();
            assertThat(quiet(client.put(puts, soon())).succeededCount()).isEqualTo(puts.size());
            StoreTask task = quiet(client.contains(keys, soon()));
            assertThat(IntStream.range(0, 5000).filter(task::succeeded))
                    .containsExactlyElementsOf(IntStream.range(0, 5000)
                            .filter(i -> i % 3 == 0)
                            .boxed()
                            .toList());
        }
    }

    @Test
    void aValueThatIsLongerThanItsPlaceIsAMissAndTheNextOneIsRead() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmClient client = connected(server.port())) {
            MemorySegment value = random(arena, random, 200_000);
            quiet(client.put(
                    List.of(
                            new LmClient.Put("a", LmMetadata.bytes(200_000), List.of(value)),
                            new LmClient.Put("b", LmMetadata.bytes(3), List.of(value.asSlice(0, 3)))),
                    soon()));
            MemorySegment into = arena.allocate(199_999);
            LmClient.Reads reads = client.get(
                    List.of(new LmClient.Get("a", List.of(into)), new LmClient.Get("b", List.of(into))), soon());
            assertThat(quiet(reads.task()).succeeded(0)).isFalse();
            assertThat(reads.task().succeeded(1)).isTrue();
            assertThat(into.asSlice(0, 3).mismatch(value.asSlice(0, 3))).isEqualTo(-1);
            assertThat(into.get(ValueLayout.JAVA_BYTE, 3)).isZero();
        }
    }

    @Test
    void anEmptyValueIsAValue() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmClient client = connected(server.port())) {
            assertThat(quiet(client.put(List.of(new LmClient.Put("a", LmMetadata.bytes(0), List.of())), soon()))
                            .succeeded(0))
                    .isTrue();
            LmClient.Reads reads = client.get(List.of(new LmClient.Get("a", List.of())), soon());
            assertThat(quiet(reads.task()).succeeded(0)).isTrue();
            assertThat(reads.value(0)).contains(new LmClient.Value(LmMetadata.bytes(0), 0));
        }
    }

    @Test
    void keysThatTheProtocolCannotCarryAreRefused() {
        for (String key : List.of("", " a", "a ", "k".repeat(151), "ä".repeat(76))) {
            assertThatThrownBy(() -> new LmClient.Get(key, List.of()))
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining("key='" + key + "'");
        }
        LmClient.requireKey("ä".repeat(75));
    }

    @Test
    void aValueThatTheServerHasNoRoomForIsNotSaidToBeStored() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 1 << 20));
                LmClient client = connected(server.port())) {
            MemorySegment value = random(arena, random, 1 << 20);
            StoreTask task = quiet(client.put(
                    List.of(
                            new LmClient.Put("large", LmMetadata.bytes(1 << 20), List.of(value)),
                            new LmClient.Put("small", LmMetadata.bytes(9), List.of(value.asSlice(0, 9)))),
                    soon()));
            assertThat(task.succeeded(0)).isFalse();
            assertThat(task.succeeded(1)).isTrue();
            assertThat(client.takeMeasurements())
                    .contains(new Measurement(
                            "baton:kv_store_failures",
                            Measurement.Kind.COUNTER,
                            1,
                            java.util.Map.of("store", "lm", "cause", "out_of_memory")));
        }
    }

    @Test
    void aServerThatIsGoneRejectsAtOnceAndIsFoundWhenItIsBack() throws Exception {
        KvServer first = KvServer.start(KvServerSettings.of(0, 16 << 20));
        int port = first.port();
        try (LmClient client = connected(port)) {
            putsFindsAndGets(client, arena);
            first.close();
            until("the end is noticed", () -> !client.isConnected());
            StoreTask rejected = client.contains(List.of("a"), soon());
            assertThat(rejected.isDone() && rejected.isQuiet()).isTrue();
            assertThat(rejected.succeeded(0)).isFalse();
            try (KvServer second = KvServer.start(KvServerSettings.of(port, 16 << 20))) {
                untilConnected(client);
                putsFindsAndGets(client, arena);
                assertThat(second.port()).isEqualTo(port);
            }
        }
    }

    /** Its memory is filled with a pattern as soon as the task is quiet: nothing may come there any more. */
    @Test
    void aServerThatStallsCostsADeadlineAndLeavesMemoryAlone() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                StallingProxy proxy =
                        new StallingProxy(new InetSocketAddress(InetAddress.getLoopbackAddress(), server.port()));
                LmClient direct = connected(server.port());
                LmClient client = connected(proxy.port())) {
            MemorySegment value = random(arena, random, 4 << 20);
            quiet(direct.put(List.of(new LmClient.Put("a", LmMetadata.bytes(4 << 20), List.of(value))), soon()));
            proxy.stallAfter(1 << 20);
            MemorySegment into = arena.allocate(4 << 20);
            LmClient.Reads reads =
                    client.get(List.of(new LmClient.Get("a", List.of(into))), within(Duration.ofSeconds(3)));
            until("it is stalled", proxy::isStalled);
            StoreTask task = quiet(reads.task());
            assertThat(task.deadline().isOver()).isTrue();
            assertThat(task.succeeded(0)).isFalse();
            into.fill((byte) 0x5a);
            until("not trusted", () -> !client.isConnected());
            StoreTask rejected = client.contains(List.of("a"), soon());
            assertThat(rejected.isDone() && rejected.isQuiet()).isTrue();
            proxy.resume();
            untilConnected(client);
            assertThat(quiet(client.contains(List.of("a"), soon())).succeeded(0))
                    .isTrue();
            for (long at = 0; at < into.byteSize(); at += 4096) {
                assertThat(into.get(ValueLayout.JAVA_BYTE, at)).isEqualTo((byte) 0x5a);
            }
        }
    }

    @Test
    void aPutThatStallsBecomesQuietWhenItsConnectionEnds() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 256 << 20));
                StalledListener listener = new StalledListener();
                LmClient client = LmClient.open(LmBlockStoreTest.settings(listener.port()), Ticker.system())) {
            listener.answerProbes();
            untilConnected(client);
            MemorySegment value = random(arena, random, 32 << 20);
            StoreTask task = client.put(
                    List.of(new LmClient.Put("a", LmMetadata.bytes(32 << 20), List.of(value))),
                    within(Duration.ofMillis(200)));
            quiet(task);
            assertThat(task.deadline().isOver()).isTrue();
            assertThat(task.succeeded(0)).isFalse();
            assertThat(server.port()).isPositive();
        }
    }

    @Test
    void aTokenIsNeededWhereTheServerHasOne() throws Exception {
        Path token = Files.writeString(directory.resolve("token"), "0123456789abcdef0123456789abcdef\n");
        Path wrong = Files.writeString(directory.resolve("wrong"), "fedcba9876543210fedcba9876543210\n");
        KvServerSettings.Access access =
                new KvServerSettings.Access(Optional.of(token), Optional.empty(), Optional.empty(), false);
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20).withAccess(access))) {
            try (LmClient client = LmClient.open(settings(server.port(), "lm", token), Ticker.system())) {
                untilConnected(client);
                putsFindsAndGets(client, arena);
            }
            for (LmSettings settings :
                    List.of(LmBlockStoreTest.settings(server.port()), settings(server.port(), "lm", wrong))) {
                try (LmClient client = LmClient.open(settings, Ticker.system())) {
                    until(
                            "refused",
                            () -> client.takeMeasurements().stream()
                                    .anyMatch(each -> each.name().equals("baton:kv_store_connect_failures")));
                    assertThat(client.isConnected()).isFalse();
                }
            }
            try (RawLm plain = new RawLm(server.port())) {
                plain.send(RawLm.request(LmWire.EXIST, "a"));
                assertThat(plain.isEnded()).isTrue();
            }
        }
    }

    @Test
    void tlsAndATokenWorkTogetherAndAnUnknownCertificateDoesNot() throws Exception {
        Path certificate = directory.resolve("certificate.pem");
        Path key = directory.resolve("key.pem");
        Certificates.make(directory, certificate, key);
        Path token = Files.writeString(directory.resolve("token"), "0123456789abcdef0123456789abcdef\n");
        KvServerSettings.Access access =
                new KvServerSettings.Access(Optional.of(token), Optional.of(certificate), Optional.of(key), false);
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20).withAccess(access))) {
            LmSettings plain = settings(server.port(), "lms", token);
            LmSettings trusting = new LmSettings(
                    plain.url(), true, Optional.of(token), plain.limits().withCaCertificates(Optional.of(certificate)));
            try (LmClient client = LmClient.open(trusting, Ticker.system())) {
                untilConnected(client);
                putsFindsAndGets(client, arena);
            }
            try (LmClient client = LmClient.open(plain, Ticker.system())) {
                until(
                        "refused",
                        () -> client.takeMeasurements().stream()
                                .anyMatch(each -> each.name().equals("baton:kv_store_connect_failures")));
                assertThat(client.isConnected()).isFalse();
            }
        }
    }

    private static LmSettings settings(int port, String scheme, Path token) {
        return new LmSettings(
                scheme + "://127.0.0.1:" + port,
                true,
                Optional.of(token),
                new RemoteLimits(2, Duration.ofSeconds(5), 64 << 20, Optional.empty()));
    }

    @Test
    void aValueThatIsNotOfThisStoreIsAMissUntilItIsWrittenAnew() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmBlockStore store = LmBlockStoreTest.connected(
                        StoredValues.format(64 << 10), LmBlockStoreTest.settings(server.port()));
                RawLm raw = new RawLm(server.port())) {
            StoredValues values = StoredValues.random(store.format(), 4, arena, random);
            assertThat(values.put(store).succeededCount()).isEqualTo(4);
            raw.send(RawLm.request(LmWire.LIST, "x"));
            String[] keys =
                    new String(raw.bytes(raw.reply()[1]), java.nio.charset.StandardCharsets.US_ASCII).split("\n");
            assertThat(keys).hasSize(4);
            byte[] flipped = raw.get(keys[0]);
            flipped[flipped.length - 7] ^= 1;
            raw.put(keys[0], flipped);
            raw.put(keys[1], new byte[] {1, 2, 3});
            raw.put(keys[2], raw.get(keys[3]));
            assertThat(raw.exists(keys[2])).isTrue();
            StoredValues read = StoredValues.empty(store.format(), values.keys(), arena);
            assertThat(read.get(store).succeededCount()).isEqualTo(1);
            List<String> causes = store.takeMeasurements().stream()
                    .filter(each -> each.name().equals("baton:kv_store_failures"))
                    .map(each -> each.labels().get("cause"))
                    .toList();
            assertThat(causes).containsExactlyInAnyOrder("checksum", "length", "wrong_key");
            assertThat(values.contains(store).succeededCount()).isEqualTo(1);
            assertThat(values.put(store).succeededCount()).isEqualTo(4);
            assertThat(read.get(store).succeededCount()).isEqualTo(4);
            assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
        }
    }

    @Test
    void manySmallValuesInOneBatchAreAllStored() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 256 << 20));
                LmBlockStore store =
                        LmBlockStoreTest.connected(StoredValues.format(1), LmBlockStoreTest.settings(server.port()))) {
            for (int i = 0; i < 5; i++) {
                StoredValues values = StoredValues.random(store.format(), 2000, arena, random);
                StoreTask task = values.put(store);
                assertThat(task.succeededCount())
                        .as(() -> store.takeMeasurements() + server.metrics())
                        .isEqualTo(2000);
            }
        }
    }
}
