package baton.engine.model;

import baton.engine.gguf.Mxfp4;
import baton.engine.model.Recipe.Experts;
import baton.kv.DType;
import baton.kv.safetensors.PackedTensorFile.Rows;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.TensorFile;
import baton.kv.safetensors.TensorInfo;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The experts of gpt-oss, as tensors of each expert. A checkpoint has those of a layer's experts together, and in one tensor the rows of gate and
 * up projection in turns. Its matrices are MXFP4: blocks of 32 numbers of 4 bits (E2M1), each block with an exponent. Or they are of a plain
 * type, and transposed.
 */
final class GptOssExperts {
    private static final int BLOCK = 32;
    private static final int BLOCK_BYTES = BLOCK / 2;

    private final Path path;
    private final Map<String, TensorFile> files;
    private final Experts experts;
    private final PackedTensors divided;

    /** A tensor of all experts. */
    private record Together(MemorySegment data, Optional<DType> type, int experts) {
        MemorySegment of(int expert) {
            long bytes = data.byteSize() / experts;
            return data.asSlice(expert * bytes, bytes);
        }
    }

    private GptOssExperts(Path path, Map<String, TensorFile> files, Experts experts) {
        this.path = path;
        this.files = files;
        this.experts = experts;
        this.divided = new PackedTensors(path);
    }

    /**
     * Replaces the tensors of all experts by those of each.
     *
     * @param path of the checkpoint
     * @param files by tensor
     * @throws SafetensorsException if a tensor is missing, or not of the shape or type that it must have
     */
    static void divide(Path path, Map<String, TensorFile> files, ModelConfig config) throws SafetensorsException {
        Experts experts = config.recipe().experts().orElseThrow();
        GptOssExperts all = new GptOssExperts(path, files, experts);
        long hidden = config.hiddenSize();
        long width = experts.width();
        for (int layer = 0; layer < config.layers(); layer++) {
            String prefix = "model.layers." + layer + ".mlp.experts.";
            all.add(prefix, "gate_up_proj", List.of("gate_proj", "up_proj"), width, hidden);
            all.add(prefix, "down_proj", List.of("down_proj"), hidden, width);
        }
        all.divided.names().forEach(name -> files.put(name, all.divided));
    }

    /**
     * @param together the tensor's name
     * @param parts that have its rows in turns
     * @param rows of a part
     */
    private void add(String prefix, String together, List<String> parts, long rows, long columns)
            throws SafetensorsException {
        String name = prefix + together;
        int step = parts.size();
        long all = step * rows;
        Together biases = take(name + "_bias", false, all);
        boolean isPacked = files.containsKey(name + "_blocks");
        if (isPacked && columns % BLOCK != 0) {
            throw new SafetensorsException("%s: weight '%s_blocks' has rows of %d numbers, must be of a multiple of %d"
                    .formatted(path, name, columns, BLOCK));
        }
        Together matrices = isPacked
                ? take(name + "_blocks", true, all, columns / BLOCK, BLOCK_BYTES)
                : take(name, false, columns, all);
        Optional<Together> scales =
                isPacked ? Optional.of(take(name + "_scales", true, all, columns / BLOCK)) : Optional.empty();
        for (int i = 0; i < experts.count(); i++) {
            int expert = i;
            MemorySegment matrix = matrices.of(expert);
            MemorySegment bias = biases.of(expert);
            Rows inTurns = scales.map(each -> packed(matrix, each.of(expert), Math.toIntExact(columns) / BLOCK))
                    .orElseGet(() -> transposed(matrix, matrices.type.orElseThrow(), all, columns));
            for (int part = 0; part < step; part++) {
                int first = part;
                String own = prefix + expert + "." + parts.get(part);
                // Of the tensors in the file, the expert's parts, of which each of these has some rows.
                divided.add(
                        own + ".weight",
                        List.of(rows, columns),
                        matrix,
                        (row, to) -> inTurns.read(first + row * step, to));
                divided.add(own + ".bias", List.of(rows), bias, (_, to) -> {
                    for (int row = 0; row < rows; row++) {
                        to[row] = element(bias, biases.type.orElseThrow(), first + (long) row * step);
                    }
                });
            }
        }
    }

    /**
     * Takes a tensor out of the files' list.
     *
     * @param packed its elements are bytes
     * @param shape of an expert's part
     */
    private Together take(String name, boolean packed, long... shape) throws SafetensorsException {
        TensorFile file = files.remove(name);
        if (file == null) {
            throw new SafetensorsException("%s: weight '%s' is missing".formatted(path, name));
        }
        TensorInfo info = file.info(name);
        List<Long> wanted = new ArrayList<>(List.of((long) experts.count()));
        for (long size : shape) {
            wanted.add(size);
        }
        if (!info.shape().equals(wanted)) {
            throw new SafetensorsException("%s: weight '%s' has shape %s, config.json wants %s"
                    .formatted(file.path(), name, info.shape(), wanted));
        }
        Optional<DType> type = Checkpoint.dtypeOf(info);
        if (packed ? !info.dtype().equals("U8") : type.isEmpty()) {
            throw new SafetensorsException("%s: weight '%s' has dtype %s, supported: %s"
                    .formatted(file.path(), name, info.dtype(), packed ? "U8" : "BF16, F16, F32"));
        }
        return new Together(file.data(name), type, experts.count());
    }

    private static Rows packed(MemorySegment blocks, MemorySegment exponents, int count) {
        return (row, to) -> {
            byte[] own = blocks.asSlice(row * count * BLOCK_BYTES, (long) count * BLOCK_BYTES)
                    .toArray(ValueLayout.JAVA_BYTE);
            for (int block = 0; block < count; block++) {
                float scale = Mxfp4.scale(exponents.get(ValueLayout.JAVA_BYTE, row * count + block));
                for (int i = 0; i < BLOCK_BYTES; i++) {
                    int pair = own[block * BLOCK_BYTES + i];
                    to[block * BLOCK + 2 * i] = Mxfp4.number(pair) * scale;
                    to[block * BLOCK + 2 * i + 1] = Mxfp4.number(pair >> 4) * scale;
                }
            }
        };
    }

    private static Rows transposed(MemorySegment matrix, DType type, long rows, long columns) {
        return (row, to) -> {
            for (int column = 0; column < columns; column++) {
                to[column] = element(matrix, type, column * rows + row);
            }
        };
    }

    private static float element(MemorySegment data, DType type, long index) {
        return type.get(data, index * type.bytes());
    }
}
