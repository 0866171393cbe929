package baton.kv.staging;

import baton.kv.ComputedLayers;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvFence;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.kv.staging.StagedConnector.StagingMemory;
import baton.kv.staging.StagedMetadata.Load;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** One rank's copies between the device's pool and its mirror, around the calls of the connector inside. */
final class StagedWorker implements WorkerConnector {
    private final WorkerConnector inner;
    private final StagingMemory memory;
    private @Nullable Mirror mirror;
    /** Blocks of loads between steps, by request and group of layers. */
    private final Map<String, List<int[]>> loading = new HashMap<>();
    /** Blocks of loads within this step, by group of layers. */
    private final List<List<int[]>> loadingWithinStep = new ArrayList<>();
    /** Blocks that this step writes, by group of layers; none if it writes nothing. */
    private List<int[]> written = List.of();
    /** Layers of this step that are on their way to the mirror, in order. */
    private final ComputedLayers saves = new ComputedLayers();

    /** The last copy to the device. */
    private KvFence filled = KvFence.PASSED;

    StagedWorker(WorkerConnector inner, StagingMemory memory) {
        this.inner = inner;
        this.memory = memory;
    }

    /** The pool in host memory. */
    private record Mirror(
            Arena arena,
            MemorySegment bytes,
            KvLayout layout,
            KvGroups groups,
            KvCopier copier,
            KvCopier.Pinned pinned) {
        /** Ranges of a layer of the blocks of its group. The offsets are the same in both pools. */
        private List<KvCopier.Range> layer(List<int[]> blocks, int layer) {
            return blocks.isEmpty()
                    ? List.of()
                    : ranges(
                            Arrays.stream(blocks.get(groups.groupOf(layer))),
                            layout.layerOffset(groups.slotOf(layer)),
                            layout.layerBytes());
        }

        /** One range for each block. */
        private List<KvCopier.Range> whole(List<int[]> blocks) {
            return ranges(blocks.stream().flatMapToInt(Arrays::stream), 0, layout.blockBytes());
        }

        private List<KvCopier.Range> ranges(IntStream blocks, long offset, long length) {
            return blocks.mapToLong(block -> block * layout.blockBytes() + offset)
                    .mapToObj(at -> new KvCopier.Range(at, at, length))
                    .toList();
        }

        private KvFence toHost(List<KvCopier.Range> ranges, KvFence after) {
            return ranges.isEmpty() ? after : copier.toHost(ranges, bytes, after);
        }

        private KvFence toDevice(List<KvCopier.Range> ranges, KvFence after) {
            return ranges.isEmpty() ? after : copier.toDevice(ranges, bytes, after);
        }

        private void close() {
            pinned.close();
            arena.close();
        }
    }

    @Override
    public void register(KvCache cache) {
        KvMemory.Device device = (KvMemory.Device) cache.memory();
        Arena arena = Arena.ofShared();
        try {
            KvMemory.Host host = memory.allocate(arena, device.bytes());
            mirror = new Mirror(
                    arena,
                    host.host(),
                    cache.layout(),
                    cache.groups(),
                    device.copier(),
                    device.copier().pin(host.host()));
            inner.register(new KvCache(host, cache.layout(), cache.blocks(), cache.layerNames(), cache.groups()));
        } catch (RuntimeException | Error e) {
            if (mirror == null) {
                arena.close();
            }
            throw e;
        }
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return inner.handshakeMetadata();
    }

    @Override
    public boolean wantsHidden() {
        return inner.wantsHidden();
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        saves.drop();
        if (!(metadata instanceof StagedMetadata(ConnectorMetadata own, List<Load> loads, List<int[]> blocks))) {
            written = List.of();
            inner.startLoad(metadata);
            return;
        }
        written = blocks;
        for (Load load : loads) {
            if (load.withinStep()) {
                loadingWithinStep.add(load.blocks());
            } else {
                loading.put(load.requestId(), load.blocks());
            }
        }
        inner.startLoad(own);
    }

    @Override
    public void waitForLayerLoad(int layer) {
        layerLoaded(layer).await();
    }

    @Override
    public KvFence layerLoaded(int layer) {
        inner.waitForLayerLoad(layer);
        List<KvCopier.Range> loaded = loadingWithinStep.stream()
                .flatMap(blocks -> mirror().layer(blocks, layer).stream())
                .toList();
        if (layer == mirror().groups().layers() - 1) {
            loadingWithinStep.clear();
        }
        filled = mirror().toDevice(loaded, filled);
        return filled;
    }

    @Override
    public void saveLayer(int layer) {
        saveLayer(layer, KvFence.PASSED);
    }

    @Override
    public void saveLayer(int layer, KvFence computed) {
        Mirror host = mirror();
        if (inner.savesByLayer()) {
            saves.add(layer, host.toHost(host.layer(written, layer), computed));
        } else if (layer == host.groups().layers() - 1) {
            saves.add(layer, host.toHost(host.whole(written), computed));
        }
        saves.take(this::save);
    }

    private void save(int layer) {
        if (inner.savesByLayer()) {
            inner.saveLayer(layer);
        }
    }

    /** All layers are in the mirror, and the connector knows it. */
    private void finishSaves() {
        saves.await(this::save);
    }

    @Override
    public void saveHidden(String requestId, HiddenState state) {
        finishSaves();
        inner.saveHidden(requestId, state);
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        finishSaves();
        inner.discardSaves(requestIds);
    }

    @Override
    public void waitForSave() {
        finishSaves();
        inner.waitForSave();
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        saves.drop();
        WorkerReport report = inner.report(finished);
        List<KvCopier.Range> loaded = report.received().stream()
                .map(loading::remove)
                .filter(Objects::nonNull)
                .flatMap(blocks -> mirror().whole(blocks).stream())
                .toList();
        filled = mirror().toDevice(loaded, filled);
        filled.await();
        return report;
    }

    private Mirror mirror() {
        return Objects.requireNonNull(mirror, "no pool is registered");
    }

    /** If the connector cannot be closed, its transfers may go on, so the mirror stays. */
    @Override
    public void close() {
        inner.close();
        Mirror last = mirror;
        mirror = null;
        if (last != null) {
            saves.drop();
            filled.await();
            last.close();
        }
    }
}
