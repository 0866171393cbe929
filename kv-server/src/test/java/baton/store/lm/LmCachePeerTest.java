package baton.store.lm;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.FreePorts;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.remote.StoredValues;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Against the published LMCache: the environment variable {@code BATON_LMCACHE_PYTHON} names a Python with its package. */
class LmCachePeerTest {
    private static final Optional<String> PYTHON = Optional.ofNullable(System.getenv("BATON_LMCACHE_PYTHON"));

    @TempDir
    private Path directory;

    @BeforeAll
    static void requireLmcache() {
        assumeTrue(PYTHON.isPresent(), "BATON_LMCACHE_PYTHON names no Python with package lmcache");
    }

    @Test
    void lmcachesClientPutsFindsAndGetsAtTheKvServer() throws Exception {
        Path script = directory.resolve("client.py");
        try (InputStream in = Objects.requireNonNull(LmCachePeerTest.class.getResourceAsStream("lmcache_client.py"))) {
            Files.copy(in, script);
        }
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 64 << 20));
                LmClient client = LmClientTest.connected(server.port());
                Arena arena = Arena.ofShared()) {
            MemorySegment own = arena.allocate(64);
            own.set(ValueLayout.JAVA_INT, 0, 0x04030201);
            LmClient.Put put = new LmClient.Put("java@1@0@77@half", new LmMetadata(1, 2, 2, 1, 4, 4), List.of(own));
            assertThat(StoredValues.quiet(client.put(List.of(put), StoredValues.soon()))
                            .succeeded(0))
                    .isTrue();
            Process python = new ProcessBuilder(
                            PYTHON.orElseThrow(), script.toString(), "127.0.0.1", Integer.toString(server.port()))
                    .redirectError(directory.resolve("errors").toFile())
                    .start();
            List<String> lines;
            try (var out = python.inputReader()) {
                lines = out.lines().filter(line -> !line.contains("LMCache")).toList();
                assertThat(python.waitFor(60, TimeUnit.SECONDS)).isTrue();
            } finally {
                python.destroyForcibly();
            }
            assertThat(lines)
                    .as(() -> errors())
                    .containsExactly(
                            "before [False, False, False]",
                            "miss None",
                            "after [True, True, True]",
                            "got org/model@1@0@1234@bfloat16 [2, 4, 256, 64] torch.bfloat16 KV_2LTD True",
                            "got org/model@1@0@-1a6e12a9bdb7fd70@bfloat16 [2, 4, 256, 64] torch.bfloat16 KV_2LTD True",
                            "got org/model@1@0@b8a960cfcc69e7a5@bfloat16 [2, 4, 100, 64] torch.bfloat16 KV_2LTD True",
                            "theirs [2, 1, 4, 4] torch.float16 01020304",
                            "end");
            MemorySegment into = arena.allocate(2 * 4 * 256 * 64 * 2);
            LmClient.Reads reads = client.get(
                    List.of(new LmClient.Get("org/model@1@0@b8a960cfcc69e7a5@bfloat16", List.of(into))),
                    StoredValues.soon());
            assertThat(StoredValues.quiet(reads.task()).succeeded(0)).isTrue();
            assertThat(reads.value(0))
                    .contains(new LmClient.Value(new LmMetadata(1, 3, 2, 4, 100, 64), 2 * 4 * 100 * 64 * 2));
        }
    }

    private String errors() {
        try {
            return Files.readString(directory.resolve("errors"));
        } catch (IOException e) {
            return e.toString();
        }
    }

    @Test
    void theClientAndTheBlockStoreWorkAtLmcachesServerAndOutliveItsEnd() throws Exception {
        int port = FreePorts.inARow(1);
        InstalledProgram server = lmcacheServer(port);
        try (LmClient client = LmClientTest.connected(port);
                Arena arena = Arena.ofShared()) {
            LmClientTest.putsFindsAndGets(client, arena);
            try (LmBlockStore store =
                    LmBlockStoreTest.connected(StoredValues.format(256 << 10), LmBlockStoreTest.settings(port))) {
                StoredValues values = StoredValues.random(store.format(), 40, arena, new Random(3));
                assertThat(values.contains(store).succeededCount()).isZero();
                assertThat(values.put(store).succeededCount()).isEqualTo(40);
                assertThat(values.contains(store).succeededCount()).isEqualTo(40);
                StoredValues read = StoredValues.empty(store.format(), values.keys(), arena);
                assertThat(read.get(store).succeededCount()).isEqualTo(40);
                assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
                server.kill();
                StoredValues.until("the end is noticed", () -> !store.isConnected());
                assertThat(read.get(store).succeededCount()).isZero();
            }
        } finally {
            server.kill();
        }
    }

    /** A connection that breaks inside a value leaves its key behind at LMCache's server, without the value. */
    @Test
    void aValueThatLmcachesServerCutsShortIsAMiss() throws Exception {
        int port = FreePorts.inARow(1);
        InstalledProgram server = lmcacheServer(port);
        try (LmClient client = LmClientTest.connected(port);
                Arena arena = Arena.ofShared()) {
            String key = "m@1@0@9@uint8";
            try (RawLm breaking = new RawLm(port)) {
                breaking.send(RawLm.request(LmWire.PUT, key, 1 << 20, 5, 6, 1 << 20), new byte[1000]);
            }
            StoredValues.until(
                    "the key is there",
                    () -> StoredValues.quiet(client.contains(List.of(key), StoredValues.soon()))
                            .succeeded(0));
            LmClient.Reads reads =
                    client.get(List.of(new LmClient.Get(key, List.of(arena.allocate(1 << 20)))), StoredValues.soon());
            assertThat(StoredValues.quiet(reads.task()).succeeded(0)).isFalse();
            assertThat(reads.task().deadline().isOver()).isFalse();
            assertThat(reads.value(0)).isEmpty();
            LmClientTest.untilConnected(client);
            LmClientTest.putsFindsAndGets(client, arena);
        } finally {
            server.kill();
        }
    }

    private InstalledProgram lmcacheServer(int port) throws IOException {
        return InstalledProgram.start(
                        directory.resolve("errors"),
                        List.of(PYTHON.orElseThrow(), "-m", "lmcache.v1.server", "127.0.0.1", Integer.toString(port)))
                .awaitListening(port);
    }
}
