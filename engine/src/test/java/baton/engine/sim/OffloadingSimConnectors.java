package baton.engine.sim;

import baton.connectors.bykey.StoreOpener;
import baton.connectors.lmcache.LmCacheConnector;
import baton.connectors.mooncakestore.MooncakeStoreConnector;
import baton.connectors.offloading.OffloadingConnector;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.store.memory.Eviction;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.HostMemoryStore;
import baton.testkit.Forwarding;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * OffloadingConnector, LMCacheConnectorV1 or MooncakeStoreConnector: each instance has host memory of a few chunks, and behind it a store that all instances share and that outlives them.
 * Operations of that store are late, or hang until after their deadlines and use their memory even then, or fail, or are rejected; values
 * are damaged, which their checksums show, and deleted; all of them are at times.
 */
final class OffloadingSimConnectors extends FaultyConnectors {
    /** Which connector. */
    enum Kind {
        OFFLOADING,
        LMCACHE,
        MOONCAKE
    }

    private static final double LOAD_TIMEOUT_SECONDS = 0.15;

    private final Map<BlockHash, byte[]> values = new HashMap<>();
    private final Map<String, SharedTier> tiers = new HashMap<>();
    private final Map<String, Memory> memories = new HashMap<>();
    private final Kind kind;
    private final Map<String, Object> settings;
    private final int chunks;

    OffloadingSimConnectors(SimCluster.Site site, Kind kind) {
        super(site);
        this.kind = kind;
        faults.inSome(0.1, "store rejects", "store fails");
        faults.inSome(0.3, "store late");
        faults.inSome(0.9, "copy late");
        faults.inSome(0.1, "store hangs");
        faults.inSome(0.02, "value lost");
        this.chunks = random.nextInt(2, 40);
        settings = Map.copyOf(
                switch (kind) {
                    case OFFLOADING -> offloadingSettings();
                    case LMCACHE -> lmCacheSettings();
                    case MOONCAKE -> mooncakeSettings();
                });
    }

    private Map<String, Object> mooncakeSettings() {
        Map<String, Object> chosen = new HashMap<>(Map.of(
                "store_rest_url",
                "http://127.0.0.1:1",
                "local_buffer_size",
                "1gb",
                "save_decode_cache",
                random.nextBoolean(),
                "load_timeout_seconds",
                LOAD_TIMEOUT_SECONDS));
        if (random.nextInt(8) == 0) {
            chosen.put("enable_lookup", false);
        }
        return chosen;
    }

    private Map<String, Object> lmCacheSettings() {
        Map<String, Object> chosen = new HashMap<>(Map.of(
                "chunk_size",
                site.blockSize() * (random.nextInt(3) == 0 ? random.nextInt(2, 4) : 1),
                "save_decode_cache",
                random.nextBoolean(),
                "pre_caching_hash_algorithm",
                random.nextBoolean() ? "builtin" : "sha256_cbor",
                "blocking_timeout_secs",
                LOAD_TIMEOUT_SECONDS,
                "min_retrieve_tokens",
                random.nextInt(4) == 0 ? 3 : 0));
        if (random.nextInt(4) > 0) {
            chosen.put("remote_url", "lm://simulated:1");
        }
        return chosen;
    }

    private Map<String, Object> offloadingSettings() {
        Map<String, Object> chosen = new HashMap<>(Map.of(
                "blocks_per_chunk",
                random.nextInt(3) == 0 ? random.nextInt(2, 4) : 1,
                // Of the largest blocks that a world has; the memory is made for the number of chunks.
                "cpu_bytes_to_use",
                1L << 30,
                "eviction_policy",
                random.nextBoolean() ? "lru" : "arc",
                "store_threshold",
                random.nextInt(4) == 0 ? 2 : 0,
                "offload_prompt_only",
                random.nextBoolean(),
                "load_timeout_seconds",
                LOAD_TIMEOUT_SECONDS));
        if (random.nextInt(3) == 0) {
            chosen.put("sync_load_budget_bytes", 1 << random.nextInt(8, 16));
        }
        if (random.nextInt(4) > 0) {
            Map<String, Object> tier = new HashMap<>(Map.of("type", "fs", "root_dir", "simulated"));
            if (random.nextBoolean()) {
                tier.put("backpressure", Map.of("warmup_completions", 2));
            }
            chosen.put("secondary_tiers", List.of(tier));
        }
        return chosen;
    }

    @Override
    public boolean takesGroups() {
        return kind == Kind.OFFLOADING;
    }

    @Override
    public KvConnector connect(SimNode node) {
        tiers.remove(node.name());
        memories.remove(node.name());
        StoreOpener stores = new StoreOpener() {
            @Override
            public ValueCache memory(StoreFormat format, HostMemorySettings memory, Ticker ticker) {
                return openMemory(node.name(), format, memory.eviction(), ticker);
            }

            @Override
            public BlockStore open(Closed store, Ticker ticker) {
                return openTier(node.name(), store.format());
            }
        };
        return switch (kind) {
            case MOONCAKE -> new MooncakeStoreConnector(stores, Map.of());
            case LMCACHE -> new LmCacheConnector(stores, Map.of("PYTHONHASHSEED", "0"));
            default -> new OffloadingConnector(stores);
        };
    }

    private ValueCache openMemory(String node, StoreFormat format, Eviction eviction, Ticker ticker) {
        Memory opened;
        try {
            opened = new Memory(HostMemoryStore.open(
                    format,
                    HostMemorySettings.of(chunks * Math.ceilDiv(format.valueBytes(), 64L) * 64)
                            .withEviction(eviction)
                            .withThreads(0),
                    ticker));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        memories.put(node, opened);
        return Forwarding.to(ValueCache.class, opened.memory, opened);
    }

    private BlockStore openTier(String node, StoreFormat format) {
        SharedTier opened = new SharedTier(format);
        tiers.put(node, opened);
        return opened;
    }

    @Override
    public boolean isSymmetric() {
        return true;
    }

    @Override
    public Map<String, Object> settings(String instance) {
        return settings;
    }

    @Override
    public void poll(SimNode node) {
        if (faults.happens("value lost")) {
            lose();
        }
        Memory memory = memories.get(node.name());
        if (memory != null) {
            memory.copies.runDue();
        }
        SharedTier tier = tiers.get(node.name());
        if (tier != null) {
            tier.operations.runDue();
        }
    }

    private void lose() {
        List<BlockHash> keys = values.keySet().stream()
                .sorted((a, b) -> a.toString().compareTo(b.toString()))
                .toList();
        if (random.nextInt(10) == 0) {
            values.clear();
        } else if (!keys.isEmpty()) {
            values.remove(keys.get(random.nextInt(keys.size())));
        }
    }

    /** Host memory with copies to and from the pool that take some time. One that is cancelled ends at once. */
    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    private final class Memory {
        private final ValueCache memory;
        private final DueTasks copies = new DueTasks(site.ticker());

        private Memory(ValueCache memory) {
            this.memory = memory;
        }

        private StoreTask copy(int keys, Deadline deadline, boolean awaited, Supplier<StoreTask> action) {
            StoreTask task = new StoreTask(keys, deadline);
            Runnable copy = () -> {
                if (!task.isDone()) {
                    StoreTask copied = action.get();
                    for (int i = 0; i < keys; i++) {
                        if (copied.succeeded(i)) {
                            task.succeed(i);
                        }
                    }
                }
                task.end();
            };
            task.onDone(task::end);
            // A step waits for its loads by another clock.
            if (!awaited && faults.happens("copy late")) {
                copies.after(random.nextLong(100 * MILLI), copy);
            } else {
                copy.run();
            }
            return task;
        }

        public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
            boolean awaited = settings.containsKey("sync_load_budget_bytes");
            return copy(keys.size(), deadline, awaited, () -> memory.get(keys, to, deadline));
        }

        public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
            return copy(keys.size(), deadline, false, () -> memory.put(keys, from, deadline));
        }

        public void close() {
            copies.runAll();
            memory.close();
        }
    }

    /** One instance's access to the shared store. Operations run when they are due, before a step of the instance. */
    private final class SharedTier implements BlockStore {
        private final StoreFormat format;
        private final DueTasks operations = new DueTasks(site.ticker());
        private boolean closed;

        private SharedTier(StoreFormat format) {
            this.format = format;
        }

        @Override
        public String name() {
            return "fs";
        }

        @Override
        public StoreFormat format() {
            return format;
        }

        private StoreTask start(int keys, Deadline deadline, Consumer<StoreTask> action) {
            if (closed || faults.happens("store rejects")) {
                return StoreTask.rejected(keys, deadline);
            }
            StoreTask task = new StoreTask(keys, deadline);
            operations.after(duration("store late", "store hangs", 1500), () -> {
                action.accept(task);
                task.end();
            });
            return task;
        }

        @Override
        public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
            return start(keys.size(), deadline, task -> {
                for (int i = 0; i < keys.size(); i++) {
                    if (values.containsKey(keys.get(i))) {
                        task.succeed(i);
                    }
                }
            });
        }

        @Override
        public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
            return start(keys.size(), deadline, task -> {
                for (ValueRanges ranges : to) {
                    for (int i = 0; i < ranges.size(); i++) {
                        byte[] value = values.get(keys.get(ranges.key(i)));
                        MemorySegment target = ranges.memory().asSlice(ranges.memoryOffset(i), ranges.bytes(i));
                        // A read that fails, or comes too late, leaves anything.
                        if (value == null || task.isDone() || faults.happens("store fails")) {
                            target.fill((byte) 0x77);
                        } else {
                            target.copyFrom(
                                    MemorySegment.ofArray(value).asSlice(ranges.valueOffset(i), ranges.bytes(i)));
                            task.succeed(ranges.key(i));
                        }
                    }
                }
            });
        }

        @Override
        public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
            return start(keys.size(), deadline, task -> {
                for (ValueRanges ranges : from) {
                    for (int i = 0; i < ranges.size(); i++) {
                        BlockHash key = keys.get(ranges.key(i));
                        if (!faults.happens("store fails")) {
                            byte[] value = new byte[(int) format.valueBytes()];
                            MemorySegment.ofArray(value)
                                    .asSlice(ranges.valueOffset(i), ranges.bytes(i))
                                    .copyFrom(ranges.memory().asSlice(ranges.memoryOffset(i), ranges.bytes(i)));
                            values.putIfAbsent(key, value);
                            task.succeed(ranges.key(i));
                        }
                    }
                }
            });
        }

        @Override
        public List<StoreEvent> takeEvents() {
            return List.of();
        }

        @Override
        public List<Measurement> takeMeasurements() {
            return List.of();
        }

        @Override
        public void close() {
            closed = true;
            operations.runAll();
        }
    }
}
