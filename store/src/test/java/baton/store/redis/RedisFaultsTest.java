package baton.store.redis;

import static baton.store.remote.StoredValues.quiet;
import static baton.store.remote.StoredValues.until;
import static baton.store.remote.StoredValues.within;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.remote.Failure;
import baton.store.remote.RemoteLimits;
import baton.store.remote.StallingProxy;
import baton.store.remote.StoredValues;
import baton.testkit.VirtualTicker;
import io.netty.util.internal.PlatformDependent;
import java.lang.foreign.Arena;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;

/** Faults and omissions of a server. */
@Isolated("looks at all threads of the process")
class RedisFaultsTest {
    private static final StoreFormat FORMAT = StoredValues.format(64 << 10);
    private static final Duration SHORT = Duration.ofMillis(200);
    private static final Duration CONNECT = Duration.ofMillis(500);

    @TempDir
    private Path directory;

    @AutoClose
    private final Arena arena = Arena.ofShared();

    private final Random random = new Random(11);
    private final VirtualTicker ticker = new VirtualTicker();
    private final Map<String, Double> failures = new HashMap<>();

    @BeforeEach
    void requireServer() {
        RedisServer.assumeInstalled();
    }

    private StoredValues values(int count) {
        return StoredValues.random(FORMAT, count, arena, random);
    }

    private static RedisSettings settings(String url) {
        return new RedisSettings(
                url,
                "baton",
                Optional.empty(),
                new RemoteLimits(2, CONNECT, RemoteLimits.DEFAULT.maxBytesInFlight(), Optional.empty()));
    }

    private static RedisBlockStore connected(String url) {
        return RedisBlockStoreTest.connected(FORMAT, settings(url));
    }

    /** Of one connection for values. */
    private static RedisSettings narrow(String url, Duration connectTimeout, long maxBytesInFlight) {
        return new RedisSettings(
                url,
                "baton",
                Optional.empty(),
                new RemoteLimits(1, connectTimeout, maxBytesInFlight, Optional.empty()));
    }

    private Deadline shortly() {
        return Deadline.after(ticker, SHORT);
    }

    /** Keys that failed for a cause since the test's begin. */
    private double failures(BlockStore store, Failure cause) {
        return counted(store, "baton:kv_store_failures", cause);
    }

    private double counted(BlockStore store, String name, Failure cause) {
        for (Measurement measurement : store.takeMeasurements()) {
            failures.merge(measurement.name() + measurement.labels().get("cause"), measurement.value(), Double::sum);
        }
        return failures.getOrDefault(name + cause.label(), 0.0);
    }

    /** Tries until it works: commands that the server refused are refused without asking for a while. */
    private static void untilPut(StoredValues values, BlockStore store) {
        until("put", () -> values.put(store).succeededCount() == values.keys().size());
    }

    @Test
    void aServerThatIsAbsentAtStartIsFoundWhenItComes() throws Exception {
        try (RedisServer server = RedisServer.start(directory)) {
            server.kill();
            try (RedisBlockStore store = RedisBlockStore.open(FORMAT, settings(server.url()), Ticker.system())) {
                StoredValues values = values(3);
                StoreTask task = store.put(values.keys(), values.ranges(), StoredValues.soon());
                assertThat(task.isDone() && task.isQuiet()).isTrue();
                assertThat(task.succeededCount()).isZero();
                assertThat(values.get(store).succeededCount()).isZero();
                assertThat(values.contains(store).succeededCount()).isZero();
                assertThat(failures(store, Failure.UNAVAILABLE)).isEqualTo(9);
                server.restart();
                until("connected", store::isConnected);
                assertThat(values.put(store).succeededCount()).isEqualTo(3);
            }
        }
    }

    @Test
    void aServerThatIsKilledFailsOperationsAndIsFoundWhenItIsBack() throws Exception {
        try (RedisServer server = RedisServer.start(directory);
                RedisBlockStore store = connected(server.url())) {
            StoredValues values = values(100);
            assertThat(values.put(store).succeededCount()).isEqualTo(100);
            server.halt();
            StoreTask task = store.get(values.keys(), values.ranges(), StoredValues.soon());
            server.kill();
            quiet(task);
            assertThat(task.deadline().isOver()).isFalse();
            assertThat(task.succeededCount()).isZero();
            assertThat(failures(store, Failure.DISCONNECTED)).isEqualTo(100);
            until("disconnected", () -> !store.isConnected());
            assertThat(values.contains(store).succeededCount()).isZero();
            server.restart();
            until("connected", store::isConnected);
            assertThat(values.get(store).succeededCount()).isZero();
            untilPut(values, store);
        }
    }

    @Test
    void aServerThatHangsCostsADeadlineOnce() throws Exception {
        try (RedisServer server = RedisServer.start(directory);
                RedisBlockStore store = RedisBlockStoreTest.connected(FORMAT, settings(server.url()), ticker)) {
            StoredValues values = values(2);
            assertThat(values.put(store).succeededCount()).isEqualTo(2);
            server.halt();
            // The clock may be advanced before an operation is sent, which then says nothing of the server.
            until("a deadline after which the server is not trusted", () -> {
                StoreTask first = store.contains(values.keys(), shortly());
                ticker.advance(SHORT);
                assertThat(quiet(first).succeededCount()).isZero();
                return !store.isConnected();
            });
            assertThat(failures(store, Failure.TIMEOUT)).isPositive();
            for (int i = 0; i < 100; i++) {
                StoreTask next = store.get(values.keys(), values.ranges(), StoredValues.soon());
                assertThat(next.isDone() && next.isQuiet()).isTrue();
            }
            assertThat(failures(store, Failure.UNAVAILABLE)).isEqualTo(200);
            server.resume();
            until("connected", store::isConnected);
            assertThat(values.get(store).succeededCount()).isEqualTo(2);
        }
    }

    /** The replies come in the end: on the connections that were given up, or in time for nothing. */
    @Test
    void aLateReplyIsNotWrittenToMemoryThatIsQuiet() throws Exception {
        try (RedisServer server = RedisServer.start(directory);
                StallingProxy proxy = new StallingProxy(server.address());
                RedisBlockStore store =
                        RedisBlockStoreTest.connected(FORMAT, settings("redis://127.0.0.1:" + proxy.port()), ticker)) {
            StoredValues values = values(8);
            assertThat(values.put(store).succeededCount()).isEqualTo(8);
            StoredValues target = StoredValues.empty(FORMAT, values.keys(), arena);
            proxy.stallAfter(FORMAT.valueBytes() * 5 / 2);
            StoreTask task = store.get(target.keys(), target.ranges(), shortly());
            until("stalled", proxy::isStalled);
            ticker.advance(SHORT);
            quiet(task);
            assertThat(task.succeededCount()).isLessThan(8);
            for (int key = 0; key < 8; key++) {
                // One that was read just before the deadline may not have been counted.
                if (task.succeeded(key)) {
                    assertThat(target.sameAt(key, values)).isTrue();
                }
            }
            target.memory().fill((byte) 0x5a);
            proxy.resume();
            until("connected", store::isConnected);
            StoredValues again = StoredValues.empty(FORMAT, values.keys(), arena);
            until("read", () -> again.get(store).succeededCount() == 8);
            assertThat(again.memory().mismatch(values.memory())).isEqualTo(-1);
            assertThat(target.memory()
                            .elements(ValueLayout.JAVA_BYTE)
                            .allMatch(b -> b.get(ValueLayout.JAVA_BYTE, 0) == 0x5a))
                    .isTrue();
        }
    }

    @Test
    void aLatePutStoresItsValueOrNothing() throws Exception {
        try (RedisServer server = RedisServer.start(directory);
                RedisBlockStore store = connected(server.url())) {
            StoredValues values = values(300);
            StoredValues copy = StoredValues.empty(FORMAT, values.keys(), arena);
            copy.memory().copyFrom(values.memory());
            server.halt();
            StoreTask task = quiet(store.put(values.keys(), values.ranges(), within(SHORT)));
            assertThat(task.succeededCount()).isZero();
            values.memory().fill((byte) 0);
            server.resume();
            until("connected", store::isConnected);
            StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
            StoreTask got = read.get(store);
            for (int key = 0; key < 300; key++) {
                if (got.succeeded(key)) {
                    assertThat(read.sameAt(key, copy)).isTrue();
                }
            }
            assertThat(failures(store, Failure.CHECKSUM)).isZero();
        }
    }

    @Test
    void operationsAboveTheBytesInFlightAreRejected() throws Exception {
        try (RedisServer server = RedisServer.start(directory)) {
            RedisSettings narrow = narrow(server.url(), CONNECT, 3 * FORMAT.valueBytes());
            try (RedisBlockStore store = RedisBlockStoreTest.connected(FORMAT, narrow, ticker)) {
                StoredValues values = values(2);
                server.halt();
                StoreTask first = store.put(values.keys(), values.ranges(), shortly());
                StoreTask second = store.put(values.keys(), values.ranges(), StoredValues.soon());
                assertThat(second.isDone() && second.isQuiet()).isTrue();
                assertThat(failures(store, Failure.QUEUE_FULL)).isEqualTo(2);
                ticker.advance(SHORT);
                quiet(first);
                server.resume();
                until("connected", store::isConnected);
                untilPut(values, store);
                StoredValues many = values(20);
                assertThat(many.put(store).succeededCount()).as("one alone").isEqualTo(20);
            }
        }
    }

    @Test
    void aFullServerIsCountedAndTriedAgain() throws Exception {
        try (RedisServer server = RedisServer.start(directory, "--maxmemory", "1500kb");
                RedisBlockStore store =
                        RedisBlockStoreTest.connected(FORMAT, narrow(server.url(), CONNECT, Long.MAX_VALUE))) {
            StoredValues values = values(50);
            StoreTask task = values.put(store);
            assertThat(task.succeededCount()).isLessThan(50);
            assertThat(failures(store, Failure.OUT_OF_MEMORY)).isPositive();
            assertThat(values.get(store).succeededCount()).isEqualTo(task.succeededCount());
            // Not at once if a later value fitted, or the pause is over.
            until("paused", () -> {
                StoreTask again = values.put(store);
                return failures(store, Failure.PAUSED) > 0 && again.succeededCount() == 0;
            });
            server.command("CONFIG", "SET", "maxmemory", "0");
            untilPut(values, store);
        }
    }

    private static String url(RedisServer server) {
        return "redis://:secret@127.0.0.1:" + server.port();
    }

    @Test
    void aServerThatLoadsIsCountedAndUsedWhenItHasLoaded() throws Exception {
        StoredValues values = values(40);
        try (RedisServer server = RedisServer.start(directory, "--requirepass", "secret")) {
            try (RedisBlockStore store = connected(url(server))) {
                assertThat(values.put(store).succeededCount()).isEqualTo(40);
            }
            server.authenticated("secret", "SAVE");
        }
        // Loads each key for half a second, and answers in between, until the test continues it.
        try (RedisServer server = RedisServer.start(
                        directory,
                        "--requirepass",
                        "secret",
                        "--key-load-delay",
                        "500000",
                        "--loading-process-events-interval-bytes",
                        "1024");
                RedisBlockStore store = RedisBlockStoreTest.connected(
                        FORMAT, narrow(url(server), Duration.ofSeconds(10), Long.MAX_VALUE))) {
            StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
            assertThat(read.get(store).succeededCount()).isZero();
            assertThat(failures(store, Failure.LOADING)).isPositive();
            server.authenticated("secret", "CONFIG", "SET", "key-load-delay", "0");
            until("loaded", () -> read.get(store).succeededCount() == 40);
            assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
        }
    }

    @Test
    void aReplicaIsReadAndItsRefusalOfWritesCounted(@TempDir Path other) throws Exception {
        try (RedisServer primary = RedisServer.start(directory, "--repl-diskless-sync-delay", "0");
                RedisBlockStore store = connected(primary.url())) {
            StoredValues values = values(5);
            values.put(store);
            try (RedisServer replica = RedisServer.start(other, "--replicaof", "127.0.0.1 " + primary.port());
                    RedisBlockStore copy = RedisBlockStoreTest.connected(
                            FORMAT, RedisBlockStoreTest.settings(replica, "baton", Duration.ofMinutes(1)))) {
                StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
                until("replicated", () -> read.get(copy).succeededCount() == 5);
                assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
                StoredValues more = values(5);
                until("counted", () -> {
                    assertThat(more.put(copy).succeededCount()).isZero();
                    return failures(copy, Failure.READ_ONLY) > 0;
                });
                assertThat(read.get(copy).succeededCount()).isEqualTo(5);
            }
        }
    }

    @Test
    void aWrongPasswordIsCountedAndTheRightOneWorks() throws Exception {
        try (RedisServer server = RedisServer.start(directory, "--requirepass", "right")) {
            for (String user : List.of("", ":wrong@", "nobody:wrong@")) {
                String url = "redis://" + user + "127.0.0.1:" + server.port();
                try (RedisBlockStore store = RedisBlockStore.open(FORMAT, settings(url), Ticker.system())) {
                    failures.clear();
                    until(
                            "refused",
                            () -> counted(store, "baton:kv_store_connect_failures", Failure.AUTHENTICATION) > 0);
                    assertThat(store.isConnected()).isFalse();
                    assertThat(values(1).put(store).succeededCount()).isZero();
                }
            }
            try (RedisBlockStore store = connected("redis://:right@127.0.0.1:" + server.port() + "/3")) {
                assertThat(values(1).put(store).succeededCount()).isEqualTo(1);
            }
        }
    }

    @Test
    void closingEndsOperationsAndThreads() throws Exception {
        Set<Thread> before = Thread.getAllStackTraces().keySet();
        try (RedisServer server = RedisServer.start(directory)) {
            StoredValues values = values(50);
            StoreTask task;
            try (RedisBlockStore store = connected(server.url())) {
                server.halt();
                task = store.put(values.keys(), values.ranges(), StoredValues.soon());
            }
            assertThat(task.isDone() && task.isQuiet()).isTrue();
            assertThat(task.deadline().isOver()).isFalse();
            int silent = FreePorts.inARow(1);
            RedisBlockStore.open(FORMAT, settings("redis://127.0.0.1:" + silent), Ticker.system())
                    .close();
        }
        // Netty's one static thread ends by itself when it has had nothing to do for a second.
        until(
                "threads have ended",
                () -> Thread.getAllStackTraces().keySet().stream()
                        .filter(thread -> !before.contains(thread))
                        .filter(thread -> thread.getName().matches("(?i).*(store-client|netty|redis|nio).*"))
                        .map(Thread::getName)
                        .collect(Collectors.toSet())
                        .isEmpty());
    }

    @Test
    void memoryOfTheNetworkStaysBounded() throws Exception {
        StoreFormat large = StoredValues.format(4 << 20);
        try (RedisServer server =
                        RedisServer.start(directory, "--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lru");
                RedisBlockStore store = RedisBlockStoreTest.connected(large, settings(server.url()))) {
            long before = PlatformDependent.usedDirectMemory();
            assertThat(before).as("Netty counts its memory").isNotNegative();
            StoredValues values = StoredValues.random(large, 20, arena, random);
            StoredValues read = StoredValues.empty(large, values.keys(), arena);
            for (int i = 0; i < 5; i++) {
                assertThat(values.put(store).succeededCount()).isEqualTo(20);
                assertThat(read.get(store).succeededCount()).isEqualTo(20);
                server.command("FLUSHALL");
            }
            assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
            assertThat(PlatformDependent.usedDirectMemory() - before)
                    .as("of 800 MiB that went through")
                    .isLessThan(96L << 20);
        }
    }
}
