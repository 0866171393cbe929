package baton.store.redis;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.ModelFingerprint;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.remote.StoredValues;
import baton.store.remote.ValueHeader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The server's content: keys, damaged values, and their expiry. */
class RedisValuesTest {
    private static final StoreFormat FORMAT = StoredValues.format(16 << 10);

    @TempDir
    private static Path directory;

    @AutoClose
    private static RedisServer server;

    @AutoClose
    private final Arena arena = Arena.ofShared();

    private final String prefix = "test-" + UUID.randomUUID();

    @BeforeAll
    static void start() throws Exception {
        server = RedisServer.start(directory, "--enable-debug-command", "yes");
    }

    private StoredValues values(int count) {
        return StoredValues.random(FORMAT, count, arena, new Random(5));
    }

    private RedisBlockStore open(Duration... ttl) {
        return RedisBlockStoreTest.connected(FORMAT, RedisBlockStoreTest.settings(server, prefix, ttl));
    }

    private String key(StoredValues values, int key) {
        return "%s:%s:%s"
                .formatted(
                        prefix,
                        new ValueHeader(FORMAT).formatName(),
                        values.keys().get(key));
    }

    @Test
    void keysHavePrefixFormatAndHash() throws Exception {
        StoredValues values = values(1);
        try (RedisBlockStore store = open()) {
            values.put(store);
        }
        assertThat(server.command("KEYS", prefix + "*")).isEqualTo(key(values, 0));
        assertThat(key(values, 0)).matches(prefix + ":[0-9a-f]{32}:[0-9a-f]{64}");
        String stored = server.command("GET", key(values, 0));
        assertThat(stored).startsWith("BTKV\0\0\0\1").hasSize((int) FORMAT.valueBytes() + 84);
    }

    @Test
    void aDamagedValueIsAMissCountedByCauseAndDeleted() throws Exception {
        StoredValues values = values(9);
        try (RedisBlockStore store = open()) {
            values.put(store);
            StoreFormat other =
                    new StoreFormat(new ModelFingerprint("org/other", "b2".repeat(32)), FORMAT.layout(), 1, 1, 1);
            try (RedisBlockStore others =
                    RedisBlockStoreTest.connected(other, RedisBlockStoreTest.settings(server, prefix))) {
                StoredValues foreign =
                        new StoredValues(other, values.keys(), arena.allocate(9 * other.valueBytes(), 64));
                foreign.put(others);
            }
            server.command("SETRANGE", key(values, 0), "5000", "changed");
            server.command(
                    "SET", key(values, 1), server.command("GET", key(values, 1)).substring(0, 5000));
            server.command("APPEND", key(values, 2), "longer");
            server.command("SET", key(values, 3), server.command("GET", key(values, 8)));
            server.command("SET", key(values, 4), "hello");
            server.command("SETRANGE", key(values, 5), "7", "\2");
            server.command("DEL", key(values, 6));
            server.command("RPUSH", key(values, 6), "a list");
            server.command(
                    "COPY",
                    "%s:%s:%s"
                            .formatted(
                                    prefix,
                                    new ValueHeader(other).formatName(),
                                    values.keys().get(7)),
                    key(values, 7),
                    "REPLACE");
            store.takeMeasurements();
            store.takeEvents();

            StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
            StoreTask task = read.get(store);
            assertThat(task.succeededCount()).isEqualTo(1);
            assertThat(task.succeeded(8)).isTrue();
            assertThat(read.sameAt(8, values)).isTrue();
            Map<String, Double> causes = store.takeMeasurements().stream()
                    .filter(measurement -> measurement.name().equals("baton:kv_store_failures"))
                    .collect(Collectors.toMap(each -> each.labels().get("cause"), each -> each.value()));
            assertThat(causes)
                    .containsExactlyInAnyOrderEntriesOf(Map.of(
                            "checksum",
                            1.0,
                            "length",
                            2.0,
                            "wrong_key",
                            1.0,
                            "foreign",
                            2.0,
                            "version",
                            1.0,
                            "wrong_format",
                            1.0));
            // The store is notified of a deletion after the server's other clients.
            List<BlockHash> removed = new ArrayList<>();
            until("removals told", () -> {
                store.takeEvents().stream()
                        .filter(event -> !event.stored())
                        .map(StoreEvent::keys)
                        .forEach(removed::addAll);
                return removed.size() >= 8;
            });
            assertThat(removed)
                    .containsExactlyInAnyOrderElementsOf(values.keys().subList(0, 8));
            assertThat(values.contains(store).succeededCount()).isEqualTo(1);
            assertThat(values.put(store).succeededCount()).isEqualTo(9);
            assertThat(read.get(store).succeededCount()).isEqualTo(9);
            assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
        }
    }

    @Test
    void aHeaderThatIsChangedAnywhereIsNoticed() throws Exception {
        StoredValues values = values(1);
        try (RedisBlockStore store = open()) {
            for (int at = 0; at < ValueHeader.BYTES; at++) {
                values.put(store);
                String stored = server.command("GET", key(values, 0));
                String changed = Character.toString(stored.charAt(at) ^ 1);
                server.command("SETRANGE", key(values, 0), Integer.toString(at), changed);
                assertThat(values.get(store).succeededCount()).as("byte %d", at).isZero();
                until("deleted", () -> values.contains(store).succeededCount() == 0);
            }
        }
    }

    @Test
    void withoutTtlValuesDoNotExpire() throws Exception {
        StoredValues values = values(1);
        try (RedisBlockStore store = open()) {
            values.put(store);
            values.get(store);
        }
        assertThat(server.command("PTTL", key(values, 0))).isEqualTo("-1");
    }

    @Test
    void valuesExpireAfterTtlUnlessTheyAreReadOrPutAgain() throws Exception {
        StoredValues values = values(3);
        try (RedisBlockStore store = open(Duration.ofHours(1))) {
            values.put(store);
            for (int key = 0; key < 3; key++) {
                assertThat(remaining(values, key)).isBetween(3_000_000L, 3_600_000L);
                server.command("PEXPIRE", key(values, key), "100000");
            }
            values.contains(store);
            assertThat(remaining(values, 0)).isLessThanOrEqualTo(100_000);
            values.get(store);
            assertThat(remaining(values, 0)).isGreaterThan(3_000_000);
            server.command("PEXPIRE", key(values, 1), "100000");
            assertThat(values.put(store).succeededCount()).isEqualTo(3);
            assertThat(remaining(values, 1)).isGreaterThan(3_000_000);
            server.command("PEXPIRE", key(values, 2), "1");
            until("expired", () -> values.contains(store).succeededCount() == 2);
            assertThat(values.put(store).succeededCount()).isEqualTo(3);
        }
    }

    private static long remaining(String reply) {
        return Long.parseLong(reply);
    }

    private long remaining(StoredValues values, int key) throws Exception {
        return remaining(server.command("PTTL", key(values, key)));
    }

    @Test
    void aServerWithoutGetexHasTtlRefreshedByPexpire(@TempDir Path old) throws Exception {
        try (RedisServer renamed = RedisServer.start(old, "--rename-command", "INFO", "hidden");
                RedisBlockStore store = RedisBlockStoreTest.connected(
                        FORMAT, RedisBlockStoreTest.settings(renamed, prefix, Duration.ofHours(1)))) {
            StoredValues values = values(1);
            values.put(store);
            renamed.command("PEXPIRE", key(values, 0), "100000");
            assertThat(values.get(store).succeededCount()).isEqualTo(1);
            until("refreshed", () -> {
                try {
                    return remaining(renamed.command("PTTL", key(values, 0))) > 3_000_000;
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
        }
    }
}
