package baton.connectors;

import baton.kv.BlockCopy;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Rows;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.pipe.TensorBytes;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Copies keys and values between the blocks of a pool and tensors of tokens, {@code [token][kv head][head dim]}. Tensors beside a device's pool
 * are in its memory, or in the host's.
 */
public record TokenTensors(KvCache cache, TensorBytes keys, TensorBytes values) {
    /**
     * Starts to copy the first tokens of a sequence's blocks.
     *
     * @param layer of the pool
     * @param at where the first token is in the tensors, in tokens
     * @param computed passed when the blocks have the layer's keys and values
     * @return passed when the tensors have them
     */
    public KvFence gather(int layer, int[] blocks, int tokens, long at, KvFence computed) {
        if (cache.memory() instanceof KvMemory.Device device) {
            return copy(device.copier(), layer, blocks, tokens, at, false, computed);
        }
        computed.await();
        new BlockCopy(cache).gather(layer, blocks, 0, tokens, onHost(), at);
        return KvFence.PASSED;
    }

    /**
     * Starts to fill the first tokens of blocks; parameters as in {@link #gather}.
     *
     * @param after the copy begins when this fence is passed
     * @return passed when the blocks have them
     */
    public KvFence scatter(int layer, int[] blocks, int tokens, long at, KvFence after) {
        if (cache.memory() instanceof KvMemory.Device device) {
            return copy(device.copier(), layer, blocks, tokens, at, true, after);
        }
        after.await();
        new BlockCopy(cache).scatter(layer, blocks, 0, tokens, onHost(), at);
        return KvFence.PASSED;
    }

    private BlockCopy.TokenMajor onHost() {
        return new BlockCopy.TokenMajor.Split(
                keys.host(), values.host(), cache.layout().kvHeads(), 0);
    }

    private KvFence copy(KvCopier copier, int layer, int[] blocks, int tokens, long at, boolean toPool, KvFence after) {
        // The values after the keys, so that one fence is that of both.
        KvFence copied = after;
        for (boolean isValues : new boolean[] {false, true}) {
            TensorBytes tensor = isValues ? values : keys;
            List<Rows> rows = rows(layer, blocks, tokens, at, isValues);
            copied = switch (tensor) {
                case TensorBytes.Device _ -> copier.copy(toPool ? reversed(rows) : rows, copied);
                case TensorBytes.Host(MemorySegment host) ->
                    toPool ? copier.toDevice(ranges(rows), host, copied) : copier.toHost(ranges(rows), host, copied);
            };
        }
        return copied;
    }

    /** Copies to a tensor: the tokens of each block and head. */
    private List<Rows> rows(int layer, int[] blocks, int tokens, long at, boolean isValues) {
        KvLayout layout = cache.layout();
        long vector = layout.entryBytes() / 2;
        long token = layout.kvHeads() * vector;
        long inEntry = isValues ? vector : 0;
        long first =
                at * token + ((isValues ? values : keys) instanceof TensorBytes.Device device ? device.offset() : 0);
        List<Rows> rows = new ArrayList<>();
        for (int from = 0; from < tokens; from += layout.blockSize()) {
            long inPool = cache.layerStart(blocks[from / layout.blockSize()], layer) + inEntry;
            int count = Math.min(layout.blockSize(), tokens - from);
            for (int head = 0; head < layout.kvHeads(); head++) {
                rows.add(new Rows(
                        inPool + head * layout.headBytes(),
                        layout.entryBytes(),
                        first + from * token + head * vector,
                        token,
                        count,
                        vector));
            }
        }
        return rows;
    }

    private static List<Rows> reversed(List<Rows> rows) {
        return rows.stream()
                .map(each -> new Rows(
                        each.to(), each.toStride(), each.from(), each.fromStride(), each.count(), each.bytes()))
                .toList();
    }

    private static List<Range> ranges(List<Rows> rows) {
        return rows.stream()
                .flatMap(each -> IntStream.range(0, each.count())
                        .mapToObj(i -> new Range(
                                each.from() + i * each.fromStride(), each.to() + i * each.toStride(), each.bytes())))
                .toList();
    }
}
