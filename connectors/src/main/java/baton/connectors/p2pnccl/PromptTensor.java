package baton.connectors.p2pnccl;

import baton.kv.BlockCopy;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/** Copies a layer of a prompt between a tensor, {@code [2, tokens, kv heads, head dim]}, and the blocks of a pool. */
final class PromptTensor {
    private PromptTensor() {}

    /** The head of a tensor of whole blocks: {@code [2, blocks, block size, kv heads, head dim]}. */
    static TensorHead head(KvLayout layout, int blocks, Origin origin) {
        return new TensorHead(
                layout.dtype().torchName(),
                List.of(2L, (long) blocks, (long) layout.blockSize(), (long) layout.kvHeads(), (long) layout.headDim()),
                Optional.of(origin));
    }

    /**
     * Checks whether a tensor fits a load.
     *
     * @param mustHaveOrigin whether a tensor without its origin is refused
     * @return the problem: a label for a metric, and a description
     */
    static Optional<String[]> problem(
            TensorHead head, KvLayout layout, int tokens, Origin wanted, boolean mustHaveOrigin) {
        Optional<Origin> origin = head.origin();
        if (mustHaveOrigin && origin.isEmpty()) {
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

    /** Fills a tensor from the first {@code tokens} tokens in blocks, and the rest of it with zeros. */
    static void gather(KvCache cache, int layer, int[] blocks, int tokens, MemorySegment tensor) {
        long token = tokenBytes(cache.layout());
        long half = tensor.byteSize() / 2;
        new BlockCopy(cache).gather(layer, blocks, 0, tokens, split(cache, tensor, half), 0);
        tensor.asSlice(tokens * token, half - tokens * token).fill((byte) 0);
        tensor.asSlice(half + tokens * token).fill((byte) 0);
    }

    /** Fills blocks, the first of which begins with token {@code first}, with the tensor's tokens {@code [first, end)}. */
    static void scatter(
            TensorHead head, MemorySegment tensor, KvCache cache, int layer, int[] blocks, int first, int end) {
        long half = tokens(head.shape()) * tokenBytes(cache.layout());
        new BlockCopy(cache).scatter(layer, blocks, 0, end - first, split(cache, tensor, half), first);
    }

    /** @param half offset of the values */
    private static BlockCopy.TokenMajor split(KvCache cache, MemorySegment tensor, long half) {
        return new BlockCopy.TokenMajor.Split(
                tensor.asSlice(0, half), tensor.asSlice(half), cache.layout().kvHeads(), 0);
    }

    private static long tokenBytes(KvLayout layout) {
        return (long) layout.kvHeads() * layout.headDim() * layout.dtype().bytes();
    }
}
