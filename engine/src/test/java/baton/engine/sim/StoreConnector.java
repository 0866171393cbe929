package baton.engine.sim;

import baton.kv.BlockHash;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.testkit.SimNetwork;
import baton.testkit.SimNetwork.Range;
import baton.testkit.SimNetwork.Read;
import baton.testkit.SimNetwork.ReadState;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * Blocks by their hash, in a memory that all instances share: within the step or between steps. The store overwrites its oldest
 * entries whoever reads them; a digest per entry tells what was overwritten or came corrupt.
 */
final class StoreConnector implements KvConnector {
    private static final long GIVE_UP_NANOS = Duration.ofMillis(150).toNanos();

    /** The shared memory. */
    static final class Store {
        private record Entry(int slot, long digest) {}

        private final MemorySegment memory;
        private final long blockBytes;
        private final @Nullable BlockHash[] slots;
        private final Map<BlockHash, Entry> entries = new HashMap<>();
        private int nextSlot;

        Store(SimNetwork network, MemorySegment memory, long blockBytes) {
            this.memory = memory;
            this.blockBytes = blockBytes;
            this.slots = new @Nullable BlockHash[(int) (memory.byteSize() / blockBytes)];
            network.open("store", 0, memory);
        }

        private void put(BlockHash hash, MemorySegment block) {
            if (entries.containsKey(hash)) {
                return;
            }
            int slot = nextSlot;
            nextSlot = (nextSlot + 1) % slots.length;
            BlockHash old = slots[slot];
            if (old != null) {
                entries.remove(old);
            }
            slots[slot] = hash;
            memory.asSlice(slot * blockBytes, blockBytes).copyFrom(block);
            entries.put(hash, new Entry(slot, digest(block)));
        }
    }

    private static long digest(MemorySegment block) {
        CRC32C crc = new CRC32C();
        crc.update(block.asByteBuffer());
        return crc.getValue();
    }

    private record Load(String request, List<Optional<Store.Entry>> entries, List<Integer> blocks) {}

    private record Save(String request, BlockHash hash, int block) {}

    private record Work(List<Load> loads, List<Save> saves) implements ConnectorMetadata {}

    private final SimNode place;
    private final Store store;
    private final boolean async;
    private final long thinkNanos;

    /**
     * @param async whether loads go on between steps
     * @param think time after a request's arrival in which the connector cannot say what it has
     */
    StoreConnector(SimNode place, Store store, boolean async, Duration think) {
        this.place = place;
        this.store = store;
        this.async = async;
        this.thinkNanos = think.toNanos();
    }

    @Override
    public Set<String> names() {
        return Set.of("Store");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new Deciding(context.layout().blockSize());
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new Moving();
    }

    private final class Deciding implements SchedulerConnector {
        private final int blockSize;
        private final Map<String, Long> arrived = new HashMap<>();
        private List<Load> loads = new ArrayList<>();

        private Deciding(int blockSize) {
            this.blockSize = blockSize;
        }

        @Override
        public void onNewRequest(KvRequest request) {
            arrived.put(request.id(), place.ticker().nanos());
        }

        @Override
        public KvMatch match(KvRequest request, int computedTokens) {
            long arrival = Objects.requireNonNull(arrived.get(request.id()), request.id());
            if (place.ticker().nanos() - arrival < thinkNanos) {
                return new KvMatch.Pending();
            }
            List<BlockHash> hashes = request.blockHashes();
            int first = computedTokens / blockSize;
            int end = first;
            while (end < hashes.size() && store.entries.containsKey(hashes.get(end))) {
                end++;
            }
            return end > first ? new KvMatch.Tokens((end - first) * blockSize, async) : new KvMatch.None();
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
            if (externalTokens > 0) {
                List<Optional<Store.Entry>> entries = new ArrayList<>();
                List<Integer> blocks = new ArrayList<>();
                int end = Math.ceilDiv(computedTokens + externalTokens, blockSize);
                for (int i = computedTokens / blockSize; i < end; i++) {
                    entries.add(Optional.ofNullable(
                            store.entries.get(request.blockHashes().get(i))));
                    blocks.add(blockTable[i]);
                }
                loads.add(new Load(request.id(), entries, blocks));
            }
        }

        @Override
        public ConnectorMetadata buildMetadata(ScheduledStep step) {
            List<Save> saves = new ArrayList<>();
            for (ScheduledRequest scheduled : step.requests()) {
                List<BlockHash> hashes = scheduled.request().blockHashes();
                int end = (scheduled.computedTokens() + scheduled.scheduledTokens()) / blockSize;
                for (int i = scheduled.computedTokens() / blockSize; i < end; i++) {
                    saves.add(new Save(
                            scheduled.request().id(), hashes.get(i), scheduled.blockTable()[i]));
                }
            }
            Work work = new Work(loads, saves);
            loads = new ArrayList<>();
            return work;
        }

        @Override
        public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
            arrived.remove(request.id());
            return Release.NOW;
        }

        @Override
        public void close() {}
    }

    private record Fetch(Load load, Optional<Read> read) {}

    private final class Moving implements WorkerConnector {
        private @Nullable KvCache registered;
        private Work work = new Work(List.of(), List.of());
        private final List<Fetch> fetches = new ArrayList<>();
        private final Set<Integer> invalid = new LinkedHashSet<>();
        private final Set<String> failed = new HashSet<>();

        private KvCache cache() {
            return Objects.requireNonNull(registered, "no cache");
        }

        @Override
        public void register(KvCache cache) {
            registered = cache;
        }

        @Override
        public void startLoad(ConnectorMetadata metadata) {
            work = (Work) metadata;
            failed.clear();
            if (async) {
                for (Load load : work.loads()) {
                    List<Range> ranges = new ArrayList<>();
                    for (int i = 0; i < load.blocks().size(); i++) {
                        if (load.entries().get(i).isPresent()) {
                            ranges.add(range(load, i, 0, cache().layout().blockBytes()));
                        }
                    }
                    long giveUp = place.ticker().nanos() + GIVE_UP_NANOS;
                    fetches.add(new Fetch(
                            load,
                            ranges.isEmpty()
                                    ? Optional.empty()
                                    : Optional.of(place.endpoint().read("store", 0, ranges, giveUp))));
                }
            }
        }

        private Range range(Load load, int index, long offset, long bytes) {
            long block = cache().layout().blockBytes();
            return new Range(
                    load.blocks().get(index) * block + offset,
                    load.entries().get(index).orElseThrow().slot() * block + offset,
                    bytes);
        }

        @Override
        public void waitForLayerLoad(int layer) {
            if (async) {
                return;
            }
            for (Load load : work.loads()) {
                for (int i = 0; i < load.blocks().size(); i++) {
                    if (load.entries().get(i).isPresent()) {
                        long bytes = cache().layout().layerBytes();
                        place.endpoint()
                                .copyNow(
                                        "store",
                                        0,
                                        range(load, i, cache().layout().layerOffset(layer), bytes));
                    }
                }
                if (layer == cache().layout().layers() - 1) {
                    verify(load);
                }
            }
        }

        private void verify(Load load) {
            for (int i = 0; i < load.blocks().size(); i++) {
                int block = load.blocks().get(i);
                Optional<Store.Entry> entry = load.entries().get(i);
                if (entry.isEmpty() || entry.get().digest() != digest(cache().block(block))) {
                    invalid.add(block);
                    failed.add(load.request());
                }
            }
        }

        @Override
        public void waitForSave() {
            for (Save save : work.saves()) {
                // What was computed over blocks that did not come is no use to anybody.
                if (!failed.contains(save.request())) {
                    store.put(save.hash(), cache().block(save.block()));
                }
            }
        }

        @Override
        public WorkerReport report(Set<String> finished) {
            Set<String> received = new LinkedHashSet<>();
            for (Iterator<Fetch> all = fetches.iterator(); all.hasNext(); ) {
                Fetch fetch = all.next();
                if (fetch.read().map(Read::state).orElse(ReadState.FAILED) != ReadState.UNDER_WAY) {
                    all.remove();
                    verify(fetch.load());
                    received.add(fetch.load().request());
                }
            }
            WorkerReport report = new WorkerReport(Set.of(), received, invalid, List.of());
            invalid.clear();
            return report;
        }

        @Override
        public void close() {}
    }
}
