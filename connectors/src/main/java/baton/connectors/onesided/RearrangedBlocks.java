package baton.connectors.onesided;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.kv.KvCopier.Range;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Blocks without checksums: they are brought into Baton's order, if they are in another, and are used unverified. */
final class RearrangedBlocks implements LoadCheck {
    private static final int AT_ONCE = 4;

    private final RankContext context;
    private final BlockMapping map;
    private final TaskGroup tasks;
    private final long began;
    private Duration took = Duration.ZERO;

    RearrangedBlocks(RankContext context, BlockMapping map) {
        this.context = context;
        this.map = map;
        this.tasks = new TaskGroup(context.background());
        this.began = context.ticker().nanos();
        List<Heads> rearranged = map.heads().stream().filter(map::isRearranged).toList();
        if (!rearranged.isEmpty()) {
            int[] blocks = map.plan().blocks();
            int each = Math.max(1, Math.ceilDiv(blocks.length, AT_ONCE));
            for (int from = 0; from < blocks.length; from += each) {
                int[] some = Arrays.copyOfRange(blocks, from, Math.min(from + each, blocks.length));
                // All heads of a block by one task: a device's block is copied and written back whole.
                tasks.run(() -> rearranged.forEach(heads -> rearrange(heads, some)));
            }
        }
    }

    private void rearrange(Heads heads, int[] blocks) {
        PageRearrangement order = new PageRearrangement(context.cache().layout(), map.ownerInterior(heads));
        for (int block : blocks) {
            switch (context.cache().memory()) {
                case KvMemory.Host _ -> rearrange(order, heads, context.cache().block(block));
                case KvMemory.Device device -> {
                    KvLayout layout = context.cache().layout();
                    List<Range> range = List.of(new Range(block * layout.blockBytes(), 0, layout.blockBytes()));
                    try (Arena arena = Arena.ofShared()) {
                        MemorySegment copy = arena.allocate(layout.blockBytes());
                        device.copier().toHost(range, copy, KvFence.PASSED).await();
                        rearrange(order, heads, copy);
                        device.copier().toDevice(range, copy, KvFence.PASSED).await();
                    }
                }
            }
        }
    }

    private void rearrange(PageRearrangement order, Heads heads, MemorySegment block) {
        KvLayout layout = context.cache().layout();
        for (int layer = 0; layer < layout.layers(); layer++) {
            order.rearrange(
                    block.asSlice(layout.layerOffset(layer), layout.layerBytes()), heads.readerHead(), heads.count());
        }
    }

    @Override
    public boolean advance() {
        took = Duration.ofNanos(context.ticker().nanos() - began);
        return tasks.isOver();
    }

    @Override
    public Optional<String> failure() {
        return tasks.failure().map(why -> "the blocks could not be rearranged: " + why);
    }

    @Override
    public boolean isVerified() {
        return false;
    }

    @Override
    public Map<String, Duration> durations() {
        return Map.of("rearrange", took);
    }

    @Override
    public void await() {
        tasks.await();
    }
}
