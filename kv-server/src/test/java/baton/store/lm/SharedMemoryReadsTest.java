package baton.store.lm;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.memory.MappableMemory;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.StoredValues;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Values copied out of the memory of a kv-server of the same host. */
class SharedMemoryReadsTest extends BlockStoreContract {
    private static final int VALUE = 300_000;

    private final Random random = new Random(7);

    @BeforeEach
    void memoryCanBeMapped() {
        assumeTrue(
                MappableMemory.whyNone().isEmpty(),
                () -> MappableMemory.whyNone().orElse(""));
    }

    @Override
    protected Medium medium() throws Exception {
        return LmBlockStoreTest.medium(true);
    }

    private static KvServer server(long memory, Duration timeout) throws IOException {
        KvServerSettings plain = KvServerSettings.of(0, memory);
        return KvServer.start(plain.withLimits(new KvServerSettings.Limits(
                plain.limits().connections(),
                plain.limits().valueBytes(),
                timeout,
                plain.limits().leastRate())));
    }

    private static long count(KvServer server, String labels) {
        Matcher matcher = Pattern.compile(
                        "^baton:kv_server_requests_total\\{" + labels + "\\} (\\d+)$", Pattern.MULTILINE)
                .matcher(server.metrics());
        return matcher.find() ? Long.parseLong(matcher.group(1)) : 0;
    }

    private byte[] value(int bytes) {
        byte[] value = new byte[bytes];
        random.nextBytes(value);
        return value;
    }

    private static List<BlockHash> keys(int from, int count) {
        return IntStream.range(from, from + count)
                .mapToObj(i -> new BlockHash(31L * i, i, ~i, 7))
                .toList();
    }

    private static List<ValueRanges> ranges(MemorySegment memory, int count, long bytes) {
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < count; i++) {
            // In two pieces, the second one first.
            ranges.add(i, bytes / 2, i * bytes, bytes - bytes / 2);
            ranges.add(i, 0, i * bytes + bytes - bytes / 2, bytes / 2);
        }
        return List.of(ranges);
    }

    private static int await(StoreTask task) {
        while (!task.isDone() || !task.isQuiet()) {
            LockSupport.parkNanos(50_000);
        }
        return task.succeededCount();
    }

    private static Deadline soon() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }

    @Test
    void valuesAreReadWhileOthersReplaceThem() throws Exception {
        int count = 40;
        StoreFormat format = StoredValues.format(64 << 10);
        long bytes = format.valueBytes();
        try (KvServer server = server(8 << 20, Duration.ofSeconds(20));
                LmBlockStore reader =
                        LmBlockStoreTest.connected(format, LmBlockStoreTest.settings(server.port(), true));
                LmBlockStore writer =
                        LmBlockStoreTest.connected(format, LmBlockStoreTest.settings(server.port(), true));
                Arena arena = Arena.ofShared()) {
            MemorySegment from = arena.allocate(count * bytes, 4096);
            MemorySegment to = arena.allocate(count * bytes, 4096);
            MemorySegment noise = arena.allocate(count * bytes, 4096);
            for (long at = 0; at < from.byteSize(); at += 8) {
                from.set(ValueLayout.JAVA_LONG, at, random.nextLong());
                noise.set(ValueLayout.JAVA_LONG, at, random.nextLong());
            }
            int read = 0;
            for (int round = 0; round < 40; round++) {
                assertThat(await(writer.put(keys(0, count), ranges(from, count, bytes), soon())))
                        .isEqualTo(count);
                StoreTask replacing = writer.put(keys(1000 * (round + 1), count), ranges(noise, count, bytes), soon());
                to.fill((byte) 0);
                StoreTask reading = reader.get(keys(0, count), ranges(to, count, bytes), soon());
                read += await(reading);
                for (int key = 0; key < count; key++) {
                    if (reading.succeeded(key)) {
                        assertThat(to.asSlice(key * bytes, bytes).mismatch(from.asSlice(key * bytes, bytes)))
                                .as("round %d key %d", round, key)
                                .isNegative();
                    }
                }
                await(replacing);
            }
            assertThat(count(server, "command=\"hold\",result=\"hit\"")).isPositive();
            assertThat(count(server, "command=\"get\",result=\"hit\"")).isZero();
            assertThat(read).isPositive();
            assertThat(server.metrics()).doesNotContain("baton:kv_server_evictions_total{to=\"nowhere\"} 0");
            // A held value is not replaced, so that no checksum is wrong.
            assertThat(reader.takeMeasurements())
                    .extracting(Measurement::name)
                    .contains("baton:kv_store_keys")
                    .doesNotContain("baton:kv_store_failures");
        }
    }

    @Test
    void aServerThatWasStartedAnewIsMappedAnew() throws Exception {
        StoreFormat format = StoredValues.format(64 << 10);
        long bytes = format.valueBytes();
        KvServer first = server(8 << 20, Duration.ofSeconds(20));
        int port = first.port();
        try (LmBlockStore store = LmBlockStoreTest.connected(format, LmBlockStoreTest.settings(port, true));
                Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(4 * bytes, 4096);
            assertThat(await(store.put(keys(0, 4), ranges(memory, 4, bytes), soon())))
                    .isEqualTo(4);
            first.close();
            until("seen to be gone", () -> !store.isConnected());
            try (KvServer second = KvServer.start(KvServerSettings.of(port, 8 << 20))) {
                until("connected", store::isConnected);
                assertThat(await(store.get(keys(0, 4), ranges(memory, 4, bytes), soon())))
                        .isZero();
                memory.fill((byte) 5);
                // One connection may come up later than another.
                until("put", () -> await(store.put(keys(0, 4), ranges(memory, 4, bytes), soon())) == 4);
                memory.fill((byte) 0);
                until("got", () -> await(store.get(keys(0, 4), ranges(memory, 4, bytes), soon())) == 4);
                assertThat(memory.get(ValueLayout.JAVA_BYTE, 4 * bytes - 1)).isEqualTo((byte) 5);
                assertThat(count(second, "command=\"hold\",result=\"hit\"")).isPositive();
            }
        } finally {
            first.close();
        }
    }

    /** The pieces of a value that the server holds from now on. */
    private static List<MemorySegment> hold(RawLm client, String key, MemorySegment memory) throws IOException {
        client.send(RawLm.request(LmWire.HOLD, key));
        int[] reply = client.reply();
        assertThat(reply[0]).isEqualTo(LmWire.SUCCESS);
        ByteBuffer pieces = ByteBuffer.wrap(client.bytes(reply[1])).order(ByteOrder.LITTLE_ENDIAN);
        List<MemorySegment> found = new ArrayList<>();
        while (pieces.hasRemaining()) {
            found.add(memory.asSlice(pieces.getLong(), pieces.getLong()));
        }
        return found;
    }

    private static byte[] bytes(List<MemorySegment> pieces) {
        ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(
                pieces.stream().mapToLong(MemorySegment::byteSize).sum()));
        pieces.forEach(piece -> bytes.put(piece.asByteBuffer()));
        return bytes.array();
    }

    private static ServerMemory memory(RawLm client) throws IOException {
        client.send(RawLm.request(LmWire.MEMORY, LmWire.PROBE));
        int[] reply = client.reply();
        assertThat(reply[0]).isEqualTo(LmWire.SUCCESS);
        return new ServerMemory(client.bytes(reply[1]));
    }

    private static byte[] free(int values) {
        return RawLm.request(LmWire.FREE, LmWire.PROBE, 0, 1, 2, values);
    }

    @Test
    void aHeldValueKeepsItsBytesUntilItIsFreed() throws Exception {
        try (KvServer server = server(4 << 20, Duration.ofSeconds(20));
                RawLm reader = new RawLm(server.port());
                RawLm writer = new RawLm(server.port());
                ServerMemory memory = memory(reader)) {
            byte[] value = value(VALUE);
            writer.put("a", value);
            assertThat(writer.exists("a")).isTrue();
            List<MemorySegment> held = hold(reader, "a", memory.memory());
            assertThat(bytes(held)).isEqualTo(value);
            writer.put("a", value(10));
            for (int i = 0; i < 30; i++) {
                writer.put("k" + i, value(VALUE));
            }
            assertThat(writer.exists("k29")).isTrue();
            assertThat(bytes(held)).isEqualTo(value);
            reader.send(free(1));
            assertThat(reader.exists("k29")).isTrue();
            for (int i = 30; i < 60; i++) {
                writer.put("k" + i, value(VALUE));
            }
            assertThat(writer.exists("k59")).isTrue();
            assertThat(bytes(held)).isNotEqualTo(value);
        }
    }

    @Test
    void aConnectionThatHoldsForTooLongIsEndedAndItsMemoryIsFree() throws Exception {
        try (KvServer server = server(4 << 20, Duration.ofSeconds(3));
                RawLm reader = new RawLm(server.port());
                RawLm writer = new RawLm(server.port());
                ServerMemory memory = memory(reader)) {
            for (int i = 0; i < 10; i++) {
                writer.put("k" + i, value(VALUE));
                assertThat(writer.exists("k" + i)).isTrue();
                assertThat(hold(reader, "k" + i, memory.memory())).isNotEmpty();
            }
            assertThat(reader.isEnded()).isTrue();
            byte[] large = value(1 << 20);
            writer.put("large", large);
            assertThat(writer.get("large")).isEqualTo(large);
            assertThat(server.metrics()).contains("baton:kv_server_closed_connections_total{cause=\"slow_reader\"} 1");
        }
    }

    @Test
    void freeingMoreThanIsHeldEndsTheConnection() throws Exception {
        try (KvServer server = server(4 << 20, Duration.ofSeconds(20));
                RawLm writer = new RawLm(server.port())) {
            writer.put("a", value(VALUE));
            assertThat(writer.exists("a")).isTrue();
            for (int wrong : new int[] {0, -1, 2, Integer.MIN_VALUE}) {
                try (RawLm bad = new RawLm(server.port())) {
                    bad.send(RawLm.request(LmWire.HOLD, "a"));
                    bad.bytes(bad.reply()[1]);
                    bad.send(free(wrong));
                    assertThat(bad.isEnded()).as("free " + wrong).isTrue();
                }
            }
            assertThat(writer.exists("a")).isTrue();
        }
    }

    @Test
    void descriptionsThatAreNoneAreRefused() throws Exception {
        try (Arena arena = Arena.ofShared()) {
            MappableMemory other = MappableMemory.allocate(arena, 1 << 20, "test");
            byte[] good = ServerMemory.describe(other).orElseThrow();
            new ServerMemory(good).close();
            byte[] wrongInode = good.clone();
            wrongInode[0]++;
            byte[] wrongBytes = good.clone();
            wrongBytes[9]++;
            byte[] wrongFile = ByteBuffer.allocate(27)
                    .put(good, 0, 16)
                    .put("/etc/passwd".getBytes(StandardCharsets.US_ASCII))
                    .array();
            for (byte[] bad : List.of(new byte[0], new byte[16], wrongInode, wrongBytes, wrongFile)) {
                org.assertj.core.api.Assertions.assertThatThrownBy(() -> new ServerMemory(bad).close())
                        .isInstanceOf(IOException.class);
            }
        }
    }
}
