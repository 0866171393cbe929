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
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.store.memory.HostMemorySettings;
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
            try (Arena arena = Arena.ofShared()) {
                check(new Random(seed + i), arena);
            } catch (AssertionError e) {
                throw new AssertionError("-Dtests.seed=" + (seed + i), e);
            }
        }
    }

    private void check(Random random, Arena arena) {
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
        List<Value> all = values.all(request, first, end);
        assertThat(all.stream().map(Value::key)).doesNotHaveDuplicates();

        StoreFormat format = new StoreFormat(new ModelFingerprint("m", "00"), LAYOUT, chunkBlocks, 1, 1);
        ValueCache memory = new MapStores().memory(format, HostMemorySettings.of(256 * format.valueBytes()), ticker);
        int absent = random.nextInt(1, 12);
        List<BlockHash> present = all.stream()
                .filter(_ -> random.nextInt(absent) > 0)
                .map(Value::key)
                .toList();
        ValueRanges bytes = new ValueRanges(arena.allocate(format.valueBytes()));
        for (int i = 0; i < present.size(); i++) {
            bytes.add(i, 0, 0, format.valueBytes());
        }
        try (TieredStore store = new TieredStore(memory, List.of(), new TieredStore.Timeouts(SECOND, SECOND), ticker)) {
            store.put(present, List.of(bytes), Deadline.after(ticker, SECOND));
            StoredPrefix prefix = new StoredPrefix(
                    values,
                    first,
                    end,
                    length,
                    all,
                    keys -> store.acquire(keys, true, Deadline.after(ticker, SECOND), () -> {}));
            assertThat(prefix.isReady()).isTrue();
            int longest = end;
            while (longest > first && !isHere(all, groups, first, longest, length, chunkTokens, present)) {
                longest--;
            }
            assertThat(prefix.end()).isEqualTo(longest);
            if (longest * chunkBlocks > local) {
                int[] tables = tables(groups, longest * chunkBlocks, Math.min(longest * chunkTokens, length - 1));
                checkLoad(prefix.load("r", tables, local, longest * chunkBlocks), values, all, tables, local);
            }
            prefix.release();
        }
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

    /** Block tables of a request whose next token is at that position. */
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
