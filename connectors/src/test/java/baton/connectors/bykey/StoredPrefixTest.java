package baton.connectors.bykey;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.bykey.ChunkValues.Value;
import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.KvGroups;
import baton.kv.KvGroups.Group;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.store.memory.HostMemorySettings;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Prefixes of random requests in stores that lack some values, with random groups of layers. */
class StoredPrefixTest {
    private static final int BLOCK = 4;
    private static final Duration SECOND = Duration.ofSeconds(1);
    private static final KvLayout LAYOUT = new KvLayout(1, 1, 4, BLOCK, DType.F32);

    private final VirtualTicker ticker = new VirtualTicker();

    @Test
    void ofGroupsWithAWindowOnlyTheWindowIsNeeded() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        for (int i = 0; i < 500; i++) {
            try {
                check(new Random(seed + i));
            } catch (AssertionError e) {
                throw new AssertionError("-Dtests.seed=" + (seed + i), e);
            }
        }
    }

    private void check(Random random) {
        List<OptionalInt> windows = new ArrayList<>();
        for (int layer = random.nextInt(1, 4); layer > 0; layer--) {
            windows.add(random.nextInt(3) == 0 ? OptionalInt.empty() : OptionalInt.of(random.nextInt(1, 20)));
        }
        KvGroups groups = KvGroups.of(windows);
        int chunkBlocks = random.nextInt(1, 4);
        int chunkTokens = chunkBlocks * BLOCK;
        ChunkValues values = new ChunkValues(ChunkKeys.blockHashes(chunkBlocks), groups, BLOCK, chunkBlocks);
        int length = random.nextInt(1, 100);
        FakeKvRequest request = new FakeKvRequest("r", FakeKvRequest.counting(1, length), BLOCK);
        int end = length / chunkTokens;
        int local = random.nextInt(end * chunkBlocks + 1);
        int first = local / chunkBlocks;
        int stored = random.nextInt(60);
        int room = Math.min(end - first, values.mostChunks(stored));
        List<Value> ofRoom = values.all(request, first, first + room);
        assertThat(values.withoutWindows(ofRoom).size()
                        + values.inWindows(ofRoom, first, first + room, length).count())
                .isLessThanOrEqualTo(stored);
        List<Value> all = values.all(request, first, end);
        assertThat(all.stream().map(Value::key)).doesNotHaveDuplicates();

        StoreFormat format = new StoreFormat(new ModelFingerprint("m", "00"), LAYOUT, chunkBlocks, 1, 1);
        ValueCache memory = new MapStores().memory(format, HostMemorySettings.of(256 * format.valueBytes()), ticker);
        int absent = random.nextInt(1, 12);
        List<BlockHash> present = all.stream()
                .filter(_ -> random.nextInt(absent) > 0)
                .map(Value::key)
                .toList();
        MapStore slow = new MapStore(format);
        present.stream().filter(_ -> random.nextBoolean()).forEach(key -> slow.values.put(key, value(format)));
        put(present.stream().filter(key -> !slow.values.containsKey(key)).toList(), memory);
        slow.holds = random.nextBoolean();
        try (TieredStore store = store(memory, slow)) {
            StoredPrefix prefix = prefix(values, first, end, length, all, store);
            while (!prefix.isReady()) {
                assertThat(slow.held).isNotEmpty();
                slow.proceed();
            }
            assertThat(slow.lookups).isLessThanOrEqualTo(4);
            int longest = end;
            while (longest > first && !isHere(all, groups, first, longest, length, chunkTokens, present)) {
                longest--;
            }
            assertThat(prefix.end()).isEqualTo(longest);
            if (longest * chunkBlocks > local) {
                int[] tables = tables(groups, longest * chunkBlocks, Math.min(longest * chunkTokens, length - 1));
                checkLoad(prefix.load("r", tables, local, longest * chunkBlocks, false), values, all, tables, local);
            }
            prefix.release();
        }
    }

    private static byte[] value(StoreFormat format) {
        return new byte[(int) format.valueBytes()];
    }

    private void put(List<BlockHash> keys, ValueCache memory) {
        long bytes = memory.format().valueBytes();
        try (Arena arena = Arena.ofShared()) {
            ValueRanges values = new ValueRanges(arena.allocate(bytes));
            for (int i = 0; i < keys.size(); i++) {
                values.add(i, 0, 0, bytes);
            }
            memory.put(keys, List.of(values), Deadline.after(ticker, SECOND));
        }
    }

    private TieredStore store(ValueCache memory, MapStore slow) {
        return new TieredStore(
                memory,
                List.of(new Tier(slow, Optional.empty(), false)),
                new TieredStore.Timeouts(SECOND, SECOND),
                ticker);
    }

    private StoredPrefix prefix(
            ChunkValues values, int first, int end, int length, List<Value> all, TieredStore store) {
        return new StoredPrefix(
                values,
                first,
                end,
                length,
                all,
                new StoredPrefix.Source(store, true, Deadline.after(ticker, SECOND), () -> {}));
    }

    /** 200 chunks, of which the windows of both groups reach 5. */
    private void checkLong(int inMemory, int stored, int broken, int lookups, int end) {
        int chunks = 200;
        KvGroups groups = KvGroups.of(List.of(OptionalInt.of(5 * BLOCK), OptionalInt.of(4 * BLOCK)));
        ChunkValues values = new ChunkValues(ChunkKeys.blockHashes(1), groups, BLOCK, 1);
        FakeKvRequest request = new FakeKvRequest("r", FakeKvRequest.counting(1, chunks * BLOCK), BLOCK);
        List<Value> all = values.all(request, 0, chunks);
        List<BlockHash> keys = ChunkValues.keysOf(all);
        StoreFormat format = new StoreFormat(new ModelFingerprint("m", "00"), LAYOUT, 1, 1, 1, 2);
        MapStore slow = new MapStore(format);
        keys.subList(0, 2 * stored).forEach(key -> slow.values.put(key, value(format)));
        slow.broken.addAll(keys.subList(0, 2 * broken));
        ValueCache memory = new MapStores().memory(format, HostMemorySettings.of(256 * format.valueBytes()), ticker);
        put(keys.subList(0, 2 * inMemory), memory);
        try (TieredStore store = store(memory, slow)) {
            StoredPrefix prefix = prefix(values, 0, chunks, request.length(), all, store);
            assertThat(prefix.isReady()).isTrue();
            assertThat(prefix.end()).isEqualTo(end);
            assertThat(slow.lookups).isEqualTo(lookups);
            prefix.release();
        }
    }

    @Test
    void ofALongPromptThatIsNotStoredASlowTierIsAskedTwice() {
        checkLong(0, 0, 0, 2, 0);
    }

    @Test
    void theBeginningOfALongPromptIsFoundInThreeLookups() {
        checkLong(0, 90, 0, 3, 90);
    }

    @Test
    void onlyMemoryIsUsedOfATierWithFailingReads() {
        checkLong(40, 200, 200, 3, 40);
    }

    private static boolean isHere(
            List<Value> all, KvGroups groups, int first, int end, int length, int tokens, List<BlockHash> present) {
        int next = Math.min(end * tokens, length - 1);
        return all.stream()
                .filter(value -> value.chunk() >= first && value.chunk() < end)
                .filter(value ->
                        value.chunk() >= groups.groups().get(value.group()).firstOf(next) / tokens)
                .allMatch(value -> present.contains(value.key()));
    }

    /** Block tables of a request before it computes that position. */
    private static int[] tables(KvGroups groups, int size, int next) {
        int[] tables = new int[groups.size() * size];
        for (int group = 0; group < groups.size(); group++) {
            Group each = groups.groups().get(group);
            for (int i = each.firstOf(next) / BLOCK; i < size; i++) {
                tables[group * size + i] = 1 + group * size + i;
            }
        }
        return tables;
    }

    /** All blocks behind those that are here are loaded, each from its own place. */
    private static void checkLoad(Load load, ChunkValues values, List<Value> all, int[] tables, int local) {
        Map<BlockHash, Value> byKey = new HashMap<>();
        all.forEach(value -> byKey.put(value.key(), value));
        Set<Integer> loaded = new HashSet<>();
        for (int i = 0; i < load.blocks().length; i++) {
            Value value = byKey.get(load.keys().get(load.places()[i] / values.chunkBlocks()));
            assertThat(value).isNotNull();
            assertThat(values.block(value, load.places()[i] % values.chunkBlocks(), tables))
                    .isEqualTo(load.blocks()[i]);
            loaded.add(load.blocks()[i]);
        }
        Set<Integer> wanted = new HashSet<>();
        int size = tables.length / values.groups().size();
        values.groups().blocks(tables, local, size).forEach(blocks -> {
            for (int block : blocks) {
                wanted.add(block);
            }
        });
        assertThat(loaded).isEqualTo(wanted).hasSize(load.blocks().length);
    }
}
