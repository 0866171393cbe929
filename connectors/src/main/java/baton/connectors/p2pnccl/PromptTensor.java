package baton.connectors.p2pnccl;

import baton.connectors.TokenTensors;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.TensorBytes;
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

    /** The head of a tensor of tokens: {@code [2, tokens, kv heads, head dim]}. */
    static TensorHead headOfTokens(KvLayout layout, int tokens, Origin origin) {
        return new TensorHead(
                layout.dtype().torchName(),
                List.of(2L, (long) tokens, (long) layout.kvHeads(), (long) layout.headDim()),
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
            return problem("digest", "it has no digest of its prompt; kv_auth_secret_file requires one");
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

    /**
     * Fills a tensor from the first {@code tokens} tokens in blocks. Over a pool in host memory the rest of it is filled with zeros; over a
     * device's it has no more tokens.
     *
     * @param computed passed when the blocks have the layer's keys and values
     * @return passed when the tensor has them
     */
    static KvFence gather(KvCache cache, int layer, int[] blocks, int tokens, TensorBytes tensor, KvFence computed) {
        long half = tensor.byteSize() / 2;
        KvFence gathered = halves(cache, tensor, half).gather(layer, blocks, tokens, 0, computed);
        if (cache.memory() instanceof KvMemory.Host) {
            long filled = tokens * tokenBytes(cache.layout());
            tensor.slice(filled, half - filled).host().fill((byte) 0);
            tensor.slice(half + filled, half - filled).host().fill((byte) 0);
        }
        return gathered;
    }

    /** Fills blocks, the first of which begins with token {@code first}, with the tensor's tokens {@code [first, end)}. */
    static void scatter(
            TensorHead head, TensorBytes tensor, KvCache cache, int layer, int[] blocks, int first, int end) {
        long half = tokens(head.shape()) * tokenBytes(cache.layout());
        halves(cache, tensor, half)
                .scatter(layer, blocks, end - first, first, KvFence.PASSED)
                .await();
    }

    private static TokenTensors halves(KvCache cache, TensorBytes tensor, long half) {
        return new TokenTensors(cache, tensor.slice(0, half), tensor.slice(half, half));
    }

    private static long tokenBytes(KvLayout layout) {
        return (long) layout.kvHeads() * layout.headDim() * layout.dtype().bytes();
    }
}
