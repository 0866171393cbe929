package baton.connectors.pynccl;

import baton.connectors.TokenTensors;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.connector.HiddenState;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import baton.pipe.Tensor;
import baton.pipe.TensorMemory;
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
 * @param memory of keys and values to send
 * @param hasHidden whether the rank has hidden states, that is whether its stage is the last
 */
record KvTensors(KvCache cache, TensorMemory memory, boolean hasHidden) {
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
    LookupBuffer.Entry gather(PyNcclConnectorMetadata.Send send, Optional<HiddenState> hidden) {
        boolean[] roi = new boolean[send.key().length];
        Arrays.fill(roi, true);
        Tensor.Type type = type(cache.layout().dtype());
        List<Tensor> parts = new ArrayList<>();
        KvFence gathered = KvFence.PASSED;
        try {
            parts.add(memory.allocate(type, shape(send.tokens())));
            parts.add(memory.allocate(type, shape(send.tokens())));
            TokenTensors tensors = tensors(parts.getFirst(), parts.getLast());
            for (int layer = 0; layer < cache.layout().layers(); layer++) {
                long at = (long) layer * send.tokens();
                gathered = tensors.gather(layer, send.blocks(), send.tokens(), at, gathered);
            }
            parts.add(hidden.map(KvTensors::tensor).orElseGet(() -> TensorMemory.HOST.allocate(type, List.of(0L, 0L))));
            gathered.await();
            return new LookupBuffer.Entry(send.key(), roi, parts.get(0), parts.get(1), parts.get(2));
        } catch (RuntimeException | Error e) {
            // The device may write to them until then.
            try {
                gathered.await();
            } catch (RuntimeException unending) {
                e.addSuppressed(unending);
            }
            parts.forEach(Tensor::close);
            throw e;
        }
    }

    /**
     * Takes a prompt's entry and copies its valid parts into the pool.
     *
     * @return empty if the producer reports that the entry will never be inserted
     * @throws PipeException if there was no entry in time, or the buffer has ended
     */
    Optional<Received> receive(LookupBuffer buffer, PyNcclConnectorMetadata.Load load, Duration timeout)
            throws PipeException {
        boolean[] roi = new boolean[load.key().length];
        Arrays.fill(roi, true);
        Optional<LookupBuffer.Entry> taken = buffer.dropSelect(load.key(), roi, timeout);
        if (taken.isEmpty()) {
            return Optional.empty();
        }
        try (LookupBuffer.Entry entry = taken.get()) {
            return Optional.of(scatter(entry, load));
        }
    }

    /** Copies the valid parts of an entry into the pool. */
    Received scatter(LookupBuffer.Entry entry, PyNcclConnectorMetadata.Load load) {
        List<String> missing = new ArrayList<>();
        int tokens = usable(entry, load, missing);
        KvLayout layout = cache.layout();
        TokenTensors tensors = tensors(entry.key(), entry.value());
        int[] blocks = Arrays.copyOfRange(load.blocks(), load.computed() / layout.blockSize(), load.blocks().length);
        KvFence scattered = KvFence.PASSED;
        try {
            for (int layer = 0; tokens > load.computed() && layer < layout.layers(); layer++) {
                // The tensors may hold more tokens than are valid.
                long at = layer * entry.key().shape().get(1) + load.computed();
                scattered = tensors.scatter(layer, blocks, tokens - load.computed(), at, scattered);
            }
        } finally {
            // The device reads the entry and writes to the blocks until then.
            scattered.await();
        }
        Optional<HiddenState> hidden = hidden(entry.hidden());
        if (hasHidden && hidden.isEmpty()) {
            missing.add("the last token's hidden state");
        }
        return new Received(tokens, hidden, missing, entry.tensorBytes());
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
                .map(dtype -> new HiddenState(dtype, tensor.data().host()).copy());
    }

    private static Tensor tensor(HiddenState state) {
        long size = state.data().byteSize() / state.dtype().bytes();
        Tensor copy = TensorMemory.HOST.allocate(type(state.dtype()), List.of(1L, size));
        copy.data().host().copyFrom(state.data());
        return copy;
    }

    private TokenTensors tensors(Tensor keys, Tensor values) {
        return new TokenTensors(cache, keys.data(), values.data());
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
