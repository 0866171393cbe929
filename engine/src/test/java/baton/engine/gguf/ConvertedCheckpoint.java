package baton.engine.gguf;

import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** A Hugging Face checkpoint as a GGUF file, with the changes that llama.cpp's conversion makes. */
public final class ConvertedCheckpoint {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private static final Map<String, String> NAMES = Map.ofEntries(
            Map.entry("model.embed_tokens", "token_embd"),
            Map.entry("model.norm", "output_norm"),
            Map.entry("lm_head", "output"),
            Map.entry("input_layernorm", "attn_norm"),
            Map.entry("self_attn.q_proj", "attn_q"),
            Map.entry("self_attn.k_proj", "attn_k"),
            Map.entry("self_attn.v_proj", "attn_v"),
            Map.entry("self_attn.qkv_proj", "attn_qkv"),
            Map.entry("self_attn.q_norm", "attn_q_norm"),
            Map.entry("self_attn.k_norm", "attn_k_norm"),
            Map.entry("self_attn.o_proj", "attn_output"),
            Map.entry("pre_feedforward_layernorm", "ffn_norm"),
            Map.entry("post_feedforward_layernorm", "post_ffw_norm"),
            Map.entry("mlp.gate_proj", "ffn_gate"),
            Map.entry("mlp.up_proj", "ffn_up"),
            Map.entry("mlp.gate_up_proj", "ffn_up"),
            Map.entry("mlp.down_proj", "ffn_down"));

    private final Path directory;
    private final JsonNode config;
    private final String architecture;

    private ConvertedCheckpoint(Path directory) {
        this.directory = directory;
        this.config = JSON.readTree(directory.resolve("config.json"));
        String type = config.path("model_type").asString();
        this.architecture = type.equals("mistral") ? "llama" : type.replace("_text", "");
    }

    /** With tensors of F32. */
    public static Path write(Path directory, Path file) throws IOException {
        new ConvertedCheckpoint(directory).writer(GgufType.F32, 0, 1).write(file);
        return file;
    }

    /** Bytes of the header of a file with tensors of F32. */
    public static int headerBytes(Path directory) throws IOException {
        return new ConvertedCheckpoint(directory).writer(GgufType.F32, 0, 1).header().length;
    }

    /** With matrices of Q8_0. */
    public static Path writeQ8(Path directory, Path file) throws IOException {
        new ConvertedCheckpoint(directory).writer(GgufType.Q8_0, 0, 1).write(file);
        return file;
    }

    /** F32 in so many files; the first is {@code NAME-00001-of-0000N.gguf}. */
    public static Path writeSplit(Path directory, Path target, String name, int files) throws IOException {
        for (int i = 0; i < files; i++) {
            new ConvertedCheckpoint(directory)
                    .writer(GgufType.F32, i, files)
                    .write(target.resolve("%s-%05d-of-%05d.gguf".formatted(name, i + 1, files)));
        }
        return target.resolve("%s-%05d-of-%05d.gguf".formatted(name, 1, files));
    }

    private GgufWriter writer(GgufType matrices, int part, int parts) throws IOException {
        GgufWriter writer = new GgufWriter();
        if (parts > 1) {
            writer.integer("split.no", part).integer("split.count", parts);
        }
        if (part == 0) {
            shape(writer.string("general.architecture", architecture));
            Path tokenizer = directory.resolve("tokenizer.json");
            if (Files.exists(tokenizer)) {
                tokenizer(writer, JSON.readTree(tokenizer));
            }
        }
        try (SafetensorsFile weights = SafetensorsFile.open(directory.resolve("model.safetensors"))) {
            int index = 0;
            for (String name : weights.names()) {
                if (index++ % parts == part) {
                    TensorInfo info = weights.info(name);
                    float[] values = converted(name, info.shape(), floats(info, weights.data(name)));
                    GgufType type =
                            info.shape().size() > 1 && info.shape().getLast() % 32 == 0 ? matrices : GgufType.F32;
                    writer.tensor(name(name), type, info.shape(), packed(values, type));
                }
            }
        }
        return writer;
    }

    private void shape(GgufWriter writer) {
        JsonNode rope = config.path("rope_parameters").has("full_attention")
                ? config.path("rope_parameters").path("full_attention")
                : config.path("rope_parameters").isObject()
                        ? config.path("rope_parameters")
                        : config.path("rope_scaling");
        int heads = config.path("num_attention_heads").asInt();
        int headDim = config.path("head_dim").asInt(config.path("hidden_size").asInt() / heads);
        key(writer, "context_length", config.path("max_position_embeddings"));
        key(writer, "embedding_length", config.path("hidden_size"));
        key(writer, "block_count", config.path("num_hidden_layers"));
        key(writer, "feed_forward_length", config.path("intermediate_size"));
        key(writer, "attention.head_count", config.path("num_attention_heads"));
        key(writer, "attention.head_count_kv", config.path("num_key_value_heads"));
        writer.integer(architecture + ".attention.key_length", headDim);
        writer.integer(architecture + ".attention.value_length", headDim);
        writer.integer(architecture + ".rope.dimension_count", headDim);
        writer.number(
                architecture + ".attention.layer_norm_rms_epsilon",
                config.path("rms_norm_eps").asDouble());
        writer.number(
                architecture + ".rope.freq_base",
                config.path("rope_theta").asDouble(rope.path("rope_theta").asDouble()));
        if (!architecture.startsWith("qwen")) {
            key(writer, "attention.sliding_window", config.path("sliding_window"));
        }
        String type = rope.path("rope_type").asString("default");
        if (type.equals("llama3")) {
            float[] divisors = divisors(rope, config.path("rope_theta").asDouble(), headDim / 2);
            writer.tensor(
                    "rope_freqs.weight", GgufType.F32, List.of((long) divisors.length), packed(divisors, GgufType.F32));
        } else if (!type.equals("default")) {
            writer.string(architecture + ".rope.scaling.type", type);
            writer.number(
                    architecture + ".rope.scaling.factor", rope.path("factor").asDouble());
            key(writer, "rope.scaling.original_context_length", rope.path("original_max_position_embeddings"));
        }
        if (architecture.startsWith("gemma")) {
            if (architecture.equals("gemma3")) {
                writer.integer(architecture + ".attention.sliding_window_pattern", 2);
            } else {
                writer.number(
                        architecture + ".attn_logit_softcapping",
                        config.path("attn_logit_softcapping").asDouble());
            }
            writer.number(
                    architecture + ".attention.scale",
                    1 / Math.sqrt(config.path("query_pre_attn_scalar").asDouble()));
            writer.number(
                    architecture + ".final_logit_softcapping",
                    config.path("final_logit_softcapping").asDouble());
        }
    }

    /** Of which files have these numbers in place of Llama 3's four. */
    private static float[] divisors(JsonNode rope, double theta, int count) {
        double original = rope.path("original_max_position_embeddings").asDouble();
        double low = rope.path("low_freq_factor").asDouble();
        double high = rope.path("high_freq_factor").asDouble();
        double factor = rope.path("factor").asDouble();
        float[] divisors = new float[count];
        for (int i = 0; i < count; i++) {
            double wavelength = 2 * Math.PI * Math.pow(theta, (double) i / count);
            if (wavelength < original / high) {
                divisors[i] = 1;
            } else if (wavelength > original / low) {
                divisors[i] = (float) factor;
            } else {
                double smooth = (original / wavelength - low) / (high - low);
                divisors[i] = (float) (1 / ((1 - smooth) / factor + smooth));
            }
        }
        return divisors;
    }

    private void key(GgufWriter writer, String key, JsonNode value) {
        if (value.isInt()) {
            writer.integer(architecture + "." + key, value.asInt());
        }
    }

    /** A tokenizer of byte-level BPE as Qwen's. */
    private void tokenizer(GgufWriter writer, JsonNode json) throws IOException {
        Map<Integer, String> tokens = new TreeMap<>();
        json.path("model")
                .path("vocab")
                .properties()
                .forEach(entry -> tokens.put(entry.getValue().asInt(), entry.getKey()));
        json.path("added_tokens")
                .forEach(token -> tokens.put(
                        token.path("id").asInt(), token.path("content").asString()));
        int[] types = new int[tokens.size()];
        Arrays.fill(types, 1);
        json.path("added_tokens").forEach(token -> types[token.path("id").asInt()] = 3);
        List<String> merges = new ArrayList<>();
        json.path("model")
                .path("merges")
                .forEach(merge -> merges.add(
                        merge.isArray()
                                ? merge.path(0).asString() + " " + merge.path(1).asString()
                                : merge.asString()));
        JsonNode settings = JSON.readTree(directory.resolve("tokenizer_config.json"));
        List<String> all = List.copyOf(tokens.values());
        writer.string("tokenizer.ggml.model", "gpt2")
                .string("tokenizer.ggml.pre", "qwen2")
                .strings("tokenizer.ggml.tokens", all)
                .integers("tokenizer.ggml.token_type", types)
                .strings("tokenizer.ggml.merges", merges)
                .bool("tokenizer.ggml.add_bos_token", true)
                .integer(
                        "tokenizer.ggml.bos_token_id",
                        all.indexOf(settings.path("bos_token").asString()))
                .integer(
                        "tokenizer.ggml.eos_token_id",
                        all.indexOf(settings.path("eos_token").asString()))
                .integer(
                        "tokenizer.ggml.padding_token_id",
                        all.indexOf(settings.path("pad_token").asString()))
                .string(
                        "tokenizer.chat_template",
                        settings.path("chat_template").asString());
    }

    private String name(String tensor) {
        String part = tensor.replaceFirst("^model\\.layers\\.\\d+\\.", "");
        String layer = part.equals(tensor) ? "" : "blk." + tensor.split("\\.")[2] + ".";
        int dot = part.lastIndexOf('.');
        String stem = part.substring(0, dot);
        String own = stem.equals("post_attention_layernorm")
                ? architecture.startsWith("gemma") ? "post_attention_norm" : "ffn_norm"
                : NAMES.getOrDefault(stem, stem);
        return layer + own + part.substring(dot);
    }

    private float[] converted(String name, List<Long> shape, float[] values) {
        if (architecture.startsWith("gemma") && name.endsWith("norm.weight")) {
            float[] more = values.clone();
            for (int i = 0; i < more.length; i++) {
                more[i] += 1;
            }
            return more;
        }
        boolean queries = name.contains("q_proj");
        if (!architecture.equals("llama") || !(queries || name.contains("k_proj"))) {
            return values;
        }
        int heads = config.path(queries ? "num_attention_heads" : "num_key_value_heads")
                .asInt();
        int rows = shape.getFirst().intValue();
        int columns = values.length / rows;
        int half = rows / heads / 2;
        float[] turned = new float[values.length];
        for (int head = 0; head < heads; head++) {
            for (int second = 0; second < 2; second++) {
                for (int i = 0; i < half; i++) {
                    int from = (head * 2 + second) * half + i;
                    int to = head * 2 * half + 2 * i + second;
                    System.arraycopy(values, from * columns, turned, to * columns, columns);
                }
            }
        }
        return turned;
    }

    private static float[] floats(TensorInfo info, MemorySegment data) {
        if (info.dtype().equals("F32")) {
            return data.toArray(ValueLayout.JAVA_FLOAT_UNALIGNED);
        }
        short[] halves = data.toArray(ValueLayout.JAVA_SHORT_UNALIGNED);
        float[] floats = new float[halves.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = Float.intBitsToFloat(halves[i] << 16);
        }
        return floats;
    }

    private static byte[] packed(float[] values, GgufType type) {
        ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(type.rowBytes(values.length)))
                .order(ByteOrder.LITTLE_ENDIAN);
        switch (type) {
            case F32 -> bytes.asFloatBuffer().put(values);
            case Q8_0 -> {
                for (int first = 0; first < values.length; first += 32) {
                    float largest = 0;
                    for (int i = 0; i < 32; i++) {
                        largest = Math.max(largest, Math.abs(values[first + i]));
                    }
                    bytes.putShort(Float.floatToFloat16(largest / 127));
                    for (int i = 0; i < 32; i++) {
                        bytes.put((byte) Math.round(largest == 0 ? 0 : values[first + i] * 127 / largest));
                    }
                }
            }
            default -> throw new IllegalArgumentException("no values are packed as " + type);
        }
        return bytes.array();
    }
}
