package baton.connectors.pynccl;

import baton.kv.BlockCopy;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.connector.HiddenState;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import baton.pipe.Tensor;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * Copies a prompt's keys, values and last hidden state between a rank's pool and entries of a lookup buffer: vLLM's
 * {@code send_kv_caches_and_hidden_states} and {@code recv_kv_caches_and_hidden_states}. Keys and values are {@code [layers,
 * tokens, kv heads, head dim]} each. vLLM sends all hidden states; only the last one, {@code [1, hidden size]}, is needed.
 *
 * @param cache the rank's pool
 * @param hasHidden whether the rank has hidden states, that is whether its stage is the last
 */
record KvTensors(KvCache cache, boolean hasHidden) {
    /** A copy of a prompt from the pool, with its arena. */
    record Gathered(LookupBuffer.Entry entry, Arena arena) implements AutoCloseable {
        @Override
        public void close() {
            arena.close();
        }
    }

    /**
     * The received parts of a prompt.
     *
     * @param tokens how many of its tokens, from the first, now have their keys and values in the pool
     * @param hidden of the prompt's last token
     * @param missing descriptions of the missing parts; empty if the prompt is complete
     * @param bytes that were received
     */
    record Received(int tokens, Optional<HiddenState> hidden, List<String> missing, long bytes) {}

    /** Copies a prompt out of the pool. */
    Gathered gather(PyNcclConnectorMetadata.Send send, Optional<HiddenState> hidden) {
        KvLayout layout = cache.layout();
        List<Long> shape = shape(send.tokens());
        Tensor.Type type = type(layout.dtype());
        long bytes = Tensor.bytes(type, shape);
        Arena arena = Arena.ofShared();
        try {
            MemorySegment keys = arena.allocate(bytes, 64);
            MemorySegment values = arena.allocate(bytes, 64);
            BlockCopy copy = new BlockCopy(cache);
            BlockCopy.TokenMajor to = new BlockCopy.TokenMajor.Split(keys, values, layout.kvHeads(), 0);
            for (int layer = 0; layer < layout.layers(); layer++) {
                copy.gather(layer, send.blocks(), 0, send.tokens(), to, (long) layer * send.tokens());
            }
            boolean[] roi = new boolean[send.key().length];
            Arrays.fill(roi, true);
            Tensor state = hidden.map(each -> tensor(arena, each))
                    .orElseGet(() -> new Tensor(type, List.of(0L, 0L), MemorySegment.NULL));
            return new Gathered(
                    new LookupBuffer.Entry(
                            send.key(), roi, new Tensor(type, shape, keys), new Tensor(type, shape, values), state),
                    arena);
        } catch (RuntimeException | Error e) {
            arena.close();
            throw e;
        }
    }

    /**
     * Takes a prompt's entry and copies its valid parts into the pool.
     *
     * @return empty if the producer tells that the entry will never be inserted
     * @throws PipeException if there was no entry in time, or the buffer has ended
     */
    Optional<Received> receive(LookupBuffer buffer, PyNcclConnectorMetadata.Load load, Duration timeout)
            throws PipeException {
        boolean[] roi = new boolean[load.key().length];
        Arrays.fill(roi, true);
        Optional<LookupBuffer.Taken> taken = buffer.dropSelect(load.key(), roi, timeout);
        if (taken.isEmpty()) {
            return Optional.empty();
        }
        try (LookupBuffer.Taken entry = taken.get()) {
            return Optional.of(scatter(entry.entry(), load));
        }
    }

    /** Copies the valid parts of an entry into the pool. */
    Received scatter(LookupBuffer.Entry entry, PyNcclConnectorMetadata.Load load) {
        List<String> missing = new ArrayList<>();
        int tokens = usable(entry, load, missing);
        KvLayout layout = cache.layout();
        MemorySegment keys = entry.key().data();
        MemorySegment values = entry.value().data();
        BlockCopy copy = new BlockCopy(cache);
        BlockCopy.TokenMajor from = new BlockCopy.TokenMajor.Split(keys, values, layout.kvHeads(), 0);
        for (int layer = 0; tokens > load.computed() && layer < layout.layers(); layer++) {
            // The tensors may hold more tokens than are valid.
            long at = layer * entry.key().shape().get(1) + load.computed();
            copy.scatter(layer, load.blocks(), load.computed(), tokens, from, at);
        }
        Optional<HiddenState> hidden = hidden(entry.hidden());
        if (hasHidden && hidden.isEmpty()) {
            missing.add("the last token's hidden state");
        }
        long bytes = keys.byteSize() + values.byteSize() + entry.hidden().data().byteSize();
        return new Received(tokens, hidden, missing, bytes);
    }

    /** How many of the prompt's tokens, from the first, have valid keys and values in the entry. */
    private int usable(LookupBuffer.Entry entry, PyNcclConnectorMetadata.Load load, List<String> missing) {
        if (!Arrays.equals(entry.tokens(), load.key())) {
            missing.add("all, for the entry is another prompt's");
            return 0;
        }
        KvLayout layout = cache.layout();
        Tensor keys = entry.key();
        List<Long> shape = keys.shape();
        if (entry.value().type() != keys.type() || !entry.value().shape().equals(shape)) {
            missing.add("all, for keys and values differ: %s%s, %s%s"
                    .formatted(
                            keys.type().torchName(),
                            shape,
                            entry.value().type().torchName(),
                            entry.value().shape()));
            return 0;
        }
        List<Long> expected = shape(load.tokens());
        if (keys.type() != type(layout.dtype())
                || shape.size() != 4
                || !shape.subList(2, 4).equals(expected.subList(2, 4))) {
            missing.add("all, for there are %s%s in place of %s%s"
                    .formatted(
                            keys.type().torchName(), shape, type(layout.dtype()).torchName(), expected));
            return 0;
        }
        if (shape.get(0) != layout.layers()) {
            missing.add("all, for there are %d of %d layers".formatted(shape.get(0), layout.layers()));
            return 0;
        }
        int tokens = (int) Math.min(load.tokens(), shape.get(1));
        if (tokens < load.tokens()) {
            missing.add("tokens from %d on".formatted(tokens));
        }
        for (int token = 0; token < tokens; token++) {
            if (!entry.roi()[PromptKey.HEAD + token]) {
                missing.add("tokens from %d on, which are no region of interest".formatted(token));
                return token;
            }
        }
        return tokens;
    }

    private Optional<HiddenState> hidden(Tensor tensor) {
        if (!hasHidden || tensor.shape().size() != 2 || tensor.shape().get(0) != 1) {
            return Optional.empty();
        }
        return Arrays.stream(DType.values())
                .filter(dtype -> type(dtype) == tensor.type())
                .findFirst()
                .map(dtype -> new HiddenState(dtype, tensor.data()).copy());
    }

    private static Tensor tensor(Arena arena, HiddenState state) {
        long bytes = state.data().byteSize();
        MemorySegment copy = arena.allocate(bytes, 64).copyFrom(state.data());
        return new Tensor(type(state.dtype()), List.of(1L, bytes / state.dtype().bytes()), copy);
    }

    private List<Long> shape(int tokens) {
        KvLayout layout = cache.layout();
        return List.of((long) layout.layers(), (long) tokens, (long) layout.kvHeads(), (long) layout.headDim());
    }

    private static Tensor.Type type(DType dtype) {
        return switch (dtype) {
            case BF16 -> Tensor.Type.BF16;
            case F16 -> Tensor.Type.F16;
            case F32 -> Tensor.Type.F32;
            case F8_E4M3 -> Tensor.Type.F8_E4M3;
        };
    }
}
