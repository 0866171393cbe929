package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.safetensors.PackedTensorFile.Rows;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.TensorFile;
import baton.kv.safetensors.TensorInfo;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.JsonNode;

/**
 * Matrices of fp8 (e4m3) with a scale for each block, of which {@code number * scale} are the weights. Matrices of other types may be beside
 * them.
 *
 * @param scales end of the scales' name, which replaces the matrix' {@code weight}
 * @param blockRows rows of a block; 0: all
 * @param blockColumns columns of a block; 0: all
 */
record Fp8Weights(String scales, int blockRows, int blockColumns) {
    private static final String CONFIG = "quantization_config";
    private static final String WEIGHT = "weight";
    private static final float[] NUMBERS = numbers();

    private static float[] numbers() {
        float[] numbers = new float[1 << Byte.SIZE];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = DType.F8_E4M3.get(MemorySegment.ofArray(new byte[] {(byte) i}), 0);
        }
        return numbers;
    }

    /**
     * The form that {@code quantization_config} says, which is not null.
     *
     * @throws ConfigException if it is another one
     */
    static Fp8Weights of(JsonFields json) {
        JsonFields quantization = json.object(CONFIG).orElseThrow();
        return switch (quantization.string("quant_method").orElse("")) {
            case "fp8" -> {
                var _ = quantization.choice("fmt", "e4m3");
                var _ = quantization.choice("activation_scheme", "dynamic", "static");
                yield quantization
                        .value("weight_block_size")
                        .map(_ -> blocks(quantization, "weight_block_size", "weight_scale_inv"))
                        .orElse(new Fp8Weights("weight_scale", 0, 0));
            }
            case "compressed-tensors" -> ofCompressedTensors(quantization);
            default ->
                throw new ConfigException(
                        json.field(CONFIG),
                        "is %s, must be absent, or of quant_method fp8 or compressed-tensors: only weights in bf16, fp16, fp32 and fp8 are supported"
                                .formatted(quantization
                                        .string("quant_method")
                                        .map(method -> "of quant_method '" + method + "'")
                                        .orElse(JsonFields.shown(quantization.toJson()))));
        };
    }

    private static Fp8Weights ofCompressedTensors(JsonFields quantization) {
        var _ = quantization.choice("format", "float-quantized");
        quantization.value("kv_cache_scheme").ifPresent(scheme -> {
            throw new ConfigException(
                    quantization.field("kv_cache_scheme"),
                    "is %s, must be null: scales of a KV cache are not used".formatted(JsonFields.shown(scheme)));
        });
        JsonFields groups = required(quantization, "config_groups", quantization.object("config_groups"));
        if (groups.names().size() != 1) {
            throw new ConfigException(
                    quantization.field("config_groups"),
                    "has %d groups, must have one".formatted(groups.names().size()));
        }
        String name = groups.names().iterator().next();
        JsonFields group = required(groups, name, groups.object(name));
        JsonFields weights = required(group, "weights", group.object("weights"));
        var _ = weights.choice("type", "float");
        weights.integer("num_bits").filter(bits -> bits != Byte.SIZE).ifPresent(bits -> {
            throw ConfigException.unsupported(weights.field("num_bits"), bits, "8");
        });
        return switch (required(weights, "strategy", weights.choice("strategy", "tensor", "channel", "block"))) {
            case "tensor" -> new Fp8Weights("weight_scale", 0, 0);
            case "channel" -> new Fp8Weights("weight_scale", 1, 0);
            default -> blocks(weights, "block_structure", "weight_scale");
        };
    }

    private static Fp8Weights blocks(JsonFields json, String field, String scales) {
        JsonNode size = required(json, field, json.value(field));
        if (!size.isArray()
                || size.size() != 2
                || size.valueStream().anyMatch(each -> !each.isInt() || each.asInt() < 1)) {
            throw new ConfigException(
                    json.field(field), "is %s, must be [rows, columns] of a block".formatted(JsonFields.shown(size)));
        }
        return new Fp8Weights(scales, size.get(0).asInt(), size.get(1).asInt());
    }

    private static <T> T required(JsonFields json, String field, Optional<T> value) {
        return value.orElseThrow(() -> new ConfigException(json.field(field), "is missing"));
    }

    /** For people. */
    String describe() {
        String rows = blockRows == 0 ? "all" : Integer.toString(blockRows);
        String columns = blockColumns == 0 ? "all" : Integer.toString(blockColumns);
        return "fp8 (e4m3) with a scale for each block of %s rows and %s columns".formatted(rows, columns);
    }

    /**
     * Replaces matrices in fp8 and their scales by their weights.
     *
     * @param path of the checkpoint
     * @param files by tensor
     * @throws SafetensorsException if scales are missing, or not of the shape or type that they must have, or no numbers
     */
    void unpack(Path path, Map<String, TensorFile> files) throws SafetensorsException {
        PackedTensors unpacked = new PackedTensors(path);
        for (Map.Entry<String, TensorFile> file : files.entrySet()) {
            String name = file.getKey();
            TensorInfo info = file.getValue().info(name);
            if (info.dtype().equals(DType.F8_E4M3.safetensorsName())
                    && name.endsWith("." + WEIGHT)
                    && info.shape().size() == 2
                    && info.elements() > 0) {
                String prefix = name.substring(0, name.length() - WEIGHT.length());
                MemorySegment numbers = file.getValue().data(name);
                unpacked.add(name, info.shape(), numbers, rows(path, files, prefix, info.shape(), numbers));
            }
        }
        for (String name : unpacked.names()) {
            String prefix = name.substring(0, name.length() - WEIGHT.length());
            files.put(name, unpacked);
            files.remove(prefix + scales);
            // Of activations, which are not quantised.
            files.remove(prefix + "input_scale");
        }
    }

    private Rows rows(Path path, Map<String, TensorFile> files, String prefix, List<Long> shape, MemorySegment numbers)
            throws SafetensorsException {
        String name = prefix + scales;
        TensorFile file = files.get(name);
        if (file == null) {
            throw new SafetensorsException("%s: weight '%s' is missing, but '%s' has dtype %s"
                    .formatted(path, name, prefix + WEIGHT, DType.F8_E4M3.safetensorsName()));
        }
        TensorInfo info = file.info(name);
        int columns = Math.toIntExact(shape.getLast());
        long ofRows = blockRows == 0 ? shape.getFirst() : blockRows;
        int ofColumns = blockColumns == 0 ? columns : blockColumns;
        List<Long> wanted = List.of(Math.ceilDiv(shape.getFirst(), ofRows), (long) Math.ceilDiv(columns, ofColumns));
        boolean isOne = wanted.equals(List.of(1L, 1L)) && info.shape().stream().allMatch(size -> size == 1);
        if (!isOne && !info.shape().equals(wanted)) {
            throw new SafetensorsException("%s: weight '%s' has shape %s, '%s' of shape %s wants %s"
                    .formatted(file.path(), name, info.shape(), prefix + WEIGHT, shape, wanted));
        }
        DType type = Checkpoint.dtypeOf(info)
                .orElseThrow(() -> new SafetensorsException("%s: weight '%s' has dtype %s, supported: BF16, F16, F32"
                        .formatted(file.path(), name, info.dtype())));
        MemorySegment all = file.data(name);
        for (long i = 0; i < all.byteSize(); i += type.bytes()) {
            if (!Float.isFinite(type.get(all, i))) {
                throw new SafetensorsException("%s: weight '%s' has %s as scale %d, must be a finite number"
                        .formatted(file.path(), name, type.get(all, i), i / type.bytes()));
            }
        }
        return (row, to) -> {
            byte[] own = numbers.asSlice(row * columns, columns).toArray(ValueLayout.JAVA_BYTE);
            long block = row / ofRows * wanted.getLast();
            for (int first = 0; first < columns; first += ofColumns, block++) {
                float scale = type.get(all, block * type.bytes());
                int end = Math.min(columns - first, ofColumns) + first;
                for (int i = first; i < end; i++) {
                    to[i] = NUMBERS[own[i] & 0xff] * scale;
                }
            }
        };
    }
}
