package baton.connectors.p2pnccl;

import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/** A layer of a prompt as one tensor, {@code [2, tokens, kv heads, head dim]}, and in the blocks of a pool. */
final class PromptTensor {
    private PromptTensor() {}

    /** Of a tensor that has whole blocks: {@code [2, blocks, block size, kv heads, head dim]}. */
    static TensorHead head(KvLayout layout, int blocks, Origin origin) {
        return new TensorHead(
                layout.dtype().torchName(),
                List.of(2L, (long) blocks, (long) layout.blockSize(), (long) layout.kvHeads(), (long) layout.headDim()),
                Optional.of(origin));
    }

    /**
     * Looks whether a tensor is what a load needs.
     *
     * @param mustSay whether a tensor that does not say what it was made from is of no use
     * @return what is wrong: a few words for a metric, and what it is
     */
    static Optional<String[]> problem(TensorHead head, KvLayout layout, int tokens, Origin wanted, boolean mustSay) {
        Optional<Origin> origin = head.origin();
        if (mustSay && origin.isEmpty()) {
            return problem("digest", "it does not say what it was made from; with kv_auth_secret_file it must");
        }
        if (origin.isPresent() && origin.get().tensorParallelSize() != wanted.tensorParallelSize()) {
            return problem(
                    "tensor_parallel_size",
                    "the peer has tensor_parallel_size %d, this instance %d; they must be equal"
                            .formatted(origin.get().tensorParallelSize(), wanted.tensorParallelSize()));
        }
        if (!head.dtype().equals(layout.dtype().torchName())) {
            return problem(
                    "dtype",
                    "dtype is %s, must be %s"
                            .formatted(head.dtype(), layout.dtype().torchName()));
        }
        List<Long> shape = head.shape();
        int dimensions = shape.size();
        boolean fits = (dimensions == 4 || dimensions == 5)
                && shape.get(0) == 2
                && tokens(shape) >= tokens
                && shape.get(dimensions - 2) == layout.kvHeads()
                && shape.get(dimensions - 1) == layout.headDim();
        if (!fits) {
            return problem(
                    "shape",
                    "shape is %s, must be [2, at least %d tokens, %d, %d]"
                            .formatted(shape, tokens, layout.kvHeads(), layout.headDim()));
        }
        if (origin.isPresent() && !origin.get().digest().equals(wanted.digest())) {
            return problem("digest", "it is of another prompt or model");
        }
        return Optional.empty();
    }

    private static Optional<String[]> problem(String cause, String text) {
        return Optional.of(new String[] {cause, text});
    }

    private static long tokens(List<Long> shape) {
        return shape.size() == 4 ? shape.get(1) : shape.get(1) * shape.get(2);
    }

    /** Fills a tensor from the first {@code tokens} tokens in blocks; what is left of it is zero. */
    static void gather(KvCache cache, int layer, int[] blocks, int tokens, MemorySegment tensor) {
        long token = tokenBytes(cache.layout());
        long half = tensor.byteSize() / 2;
        copy(cache, layer, blocks, 0, tokens, tensor, half, false);
        tensor.asSlice(tokens * token, half - tokens * token).fill((byte) 0);
        tensor.asSlice(half + tokens * token).fill((byte) 0);
    }

    /** Fills blocks, the first of which begins with token {@code first}, with the tensor's tokens {@code [first, end)}. */
    static void scatter(
            TensorHead head, MemorySegment tensor, KvCache cache, int layer, int[] blocks, int first, int end) {
        copy(cache, layer, blocks, first, end, tensor, tokens(head.shape()) * tokenBytes(cache.layout()), true);
    }

    private static void copy(
            KvCache cache,
            int layer,
            int[] blocks,
            int first,
            int end,
            MemorySegment tensor,
            long half,
            boolean toPool) {
        KvLayout layout = cache.layout();
        long vector = (long) layout.headDim() * layout.dtype().bytes();
        MemorySegment pool = cache.memory();
        for (int from = first; from < end; from += layout.blockSize()) {
            long start = cache.layerStart(blocks[(from - first) / layout.blockSize()], layer);
            int slots = Math.min(layout.blockSize(), end - from);
            for (int head = 0; head < layout.kvHeads(); head++) {
                long inPool = start + head * layout.headBytes();
                long inTensor = (from * (long) layout.kvHeads() + head) * vector;
                for (int slot = 0; slot < slots; slot++) {
                    if (toPool) {
                        MemorySegment.copy(tensor, inTensor, pool, inPool, vector);
                        MemorySegment.copy(tensor, half + inTensor, pool, inPool + vector, vector);
                    } else {
                        MemorySegment.copy(pool, inPool, tensor, inTensor, vector);
                        MemorySegment.copy(pool, inPool + vector, tensor, half + inTensor, vector);
                    }
                    inPool += 2 * vector;
                    inTensor += layout.kvHeads() * vector;
                }
            }
        }
    }

    private static long tokenBytes(KvLayout layout) {
        return (long) layout.kvHeads() * layout.headDim() * layout.dtype().bytes();
    }
}
