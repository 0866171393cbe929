package baton.connectors.p2pnccl;

import baton.kv.BlockCopy;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Rows;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.TensorBytes;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

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

    /**
     * Fills a tensor from the first {@code tokens} tokens in blocks. Over a pool in host memory the rest of it is filled with zeros; over a
     * device's it has no more tokens.
     *
     * @param computed passed when the blocks have the layer's keys and values
     * @return passed when the tensor has them
     */
    static KvFence gather(KvCache cache, int layer, int[] blocks, int tokens, TensorBytes tensor, KvFence computed) {
        long half = tensor.byteSize() / 2;
        switch (cache.memory()) {
            case KvMemory.Device device -> {
                return switch (tensor) {
                    case TensorBytes.Device(var _, long offset, long _) ->
                        device.copier().copy(rows(cache, layer, blocks, 0, tokens, offset, half), computed);
                    case TensorBytes.Host(MemorySegment host) ->
                        device.copier().toHost(ranges(rows(cache, layer, blocks, 0, tokens, 0, half)), host, computed);
                };
            }
            case KvMemory.Host _ -> {
                computed.await();
                gather(cache, layer, blocks, tokens, tensor.host());
                return KvFence.PASSED;
            }
        }
    }

    private static void gather(KvCache cache, int layer, int[] blocks, int tokens, MemorySegment tensor) {
        long token = tokenBytes(cache.layout());
        long half = tensor.byteSize() / 2;
        new BlockCopy(cache).gather(layer, blocks, 0, tokens, split(cache, tensor, half), 0);
        tensor.asSlice(tokens * token, half - tokens * token).fill((byte) 0);
        tensor.asSlice(half + tokens * token).fill((byte) 0);
    }

    /** Fills blocks, the first of which begins with token {@code first}, with the tensor's tokens {@code [first, end)}. */
    static void scatter(
            TensorHead head, TensorBytes tensor, KvCache cache, int layer, int[] blocks, int first, int end) {
        long half = tokens(head.shape()) * tokenBytes(cache.layout());
        switch (cache.memory()) {
            case KvMemory.Device device -> {
                KvCopier copier = device.copier();
                int tokens = end - first;
                KvFence there = switch (tensor) {
                    case TensorBytes.Device(var _, long offset, long _) ->
                        copier.copy(reversed(rows(cache, layer, blocks, first, tokens, offset, half)), KvFence.PASSED);
                    case TensorBytes.Host(MemorySegment host) ->
                        copier.toDevice(
                                ranges(rows(cache, layer, blocks, first, tokens, 0, half)), host, KvFence.PASSED);
                };
                there.await();
            }
            case KvMemory.Host _ ->
                new BlockCopy(cache).scatter(layer, blocks, 0, end - first, split(cache, tensor.host(), half), first);
        }
    }

    /**
     * Copies from a device's pool to a tensor: for each block and head the keys of its tokens, and the values.
     *
     * @param first the tensor's token that the first block begins with
     * @param keys offset of the tensor's keys
     * @param half bytes from there to its values
     */
    private static List<Rows> rows(
            KvCache cache, int layer, int[] blocks, int first, int tokens, long keys, long half) {
        KvLayout layout = cache.layout();
        int heads = layout.kvHeads();
        long entry = layout.entryBytes();
        long vector = entry / 2;
        List<Rows> rows = new ArrayList<>();
        for (int token = 0; token < tokens; token += layout.blockSize()) {
            long inPool = cache.layerStart(blocks[token / layout.blockSize()], layer);
            long inTensor = keys + (long) (first + token) * heads * vector;
            int count = Math.min(layout.blockSize(), tokens - token);
            for (int head = 0; head < heads; head++) {
                long from = inPool + head * layout.headBytes();
                long to = inTensor + head * vector;
                rows.add(new Rows(from, entry, to, heads * vector, count, vector));
                rows.add(new Rows(from + vector, entry, half + to, heads * vector, count, vector));
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

    /** @param half offset of the values */
    private static BlockCopy.TokenMajor split(KvCache cache, MemorySegment tensor, long half) {
        return new BlockCopy.TokenMajor.Split(
                tensor.asSlice(0, half), tensor.asSlice(half), cache.layout().kvHeads(), 0);
    }

    private static long tokenBytes(KvLayout layout) {
        return (long) layout.kvHeads() * layout.headDim() * layout.dtype().bytes();
    }
}
