package baton.engine.gguf;

import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.TensorInfo;
import java.io.ByteArrayOutputStream;
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
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
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
            Map.entry("post_self_attn_layernorm", "post_attention_norm"),
            Map.entry("post_mlp_layernorm", "post_ffw_norm"),
            Map.entry("self_attn.sinks", "attn_sinks.weight"),
            Map.entry("self_attn.q_a_proj", "attn_q_a"),
            Map.entry("self_attn.q_a_layernorm", "attn_q_a_norm"),
            Map.entry("self_attn.q_b_proj", "attn_q_b"),
            Map.entry("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
            Map.entry("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
            Map.entry("mlp.gate_proj", "ffn_gate"),
            Map.entry("mlp.up_proj", "ffn_up"),
            Map.entry("mlp.gate_up_proj", "ffn_up"),
            Map.entry("mlp.down_proj", "ffn_down"),
            Map.entry("mlp.c_fc", "ffn_up"),
            Map.entry("mlp.c_proj", "ffn_down"),
            Map.entry("mlp.gate", "ffn_gate_inp"),
            Map.entry("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
            Map.entry("mlp.router", "ffn_gate_inp"),
            Map.entry("block_sparse_moe.gate", "ffn_gate_inp"),
            Map.entry("mlp.shared_expert_gate", "ffn_gate_inp_shexp"));

    private static final Map<String, String> ARCHITECTURES = Map.of(
            "mistral", "llama",
            "mixtral", "llama",
            "qwen2_moe", "qwen2moe",
            "qwen3_moe", "qwen3moe",
            "gpt_oss", "gpt-oss",
            "olmo3", "olmo2",
            "deepseek_v2", "deepseek2",
            "deepseek_v3", "deepseek2");

    private static final Map<String, String> KEYS = Map.ofEntries(
            Map.entry("max_position_embeddings", "context_length"),
            Map.entry("hidden_size", "embedding_length"),
            Map.entry("num_hidden_layers", "block_count"),
            Map.entry("intermediate_size", "feed_forward_length"),
            Map.entry("num_attention_heads", "attention.head_count"),
            Map.entry("num_key_value_heads", "attention.head_count_kv"),
            Map.entry("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
            Map.entry("norm_epsilon", "attention.layer_norm_epsilon"),
            Map.entry("norm_eps", "attention.layer_norm_epsilon"),
            Map.entry("rope_theta", "rope.freq_base"),
            Map.entry("num_local_experts", "expert_count"),
            Map.entry("num_experts", "expert_count"),
            Map.entry("n_routed_experts", "expert_count"),
            Map.entry("num_experts_per_tok", "expert_used_count"),
            Map.entry("n_group", "expert_group_count"),
            Map.entry("topk_group", "expert_group_used_count"),
            Map.entry("moe_intermediate_size", "expert_feed_forward_length"),
            Map.entry("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
            Map.entry("first_k_dense_replace", "leading_dense_block_count"),
            Map.entry("n_shared_experts", "expert_shared_count"),
            Map.entry("routed_scaling_factor", "expert_weights_scale"),
            Map.entry("q_lora_rank", "attention.q_lora_rank"),
            Map.entry("kv_lora_rank", "attention.kv_lora_rank"),
            Map.entry("attention_multiplier", "attention.scale"),
            Map.entry("embedding_multiplier", "embedding_scale"),
            Map.entry("residual_multiplier", "residual_scale"),
            Map.entry("logits_scaling", "logit_scale"),
            Map.entry("attn_logit_softcapping", "attn_logit_softcapping"),
            Map.entry("final_logit_softcapping", "final_logit_softcapping"));

    private static final Map<String, String> ROPE_KEYS = Map.of(
            "rope_theta", "rope.freq_base",
            "original_max_position_embeddings", "rope.scaling.original_context_length",
            "attention_factor", "rope.scaling.yarn_attn_factor",
            "beta_fast", "rope.scaling.yarn_beta_fast",
            "beta_slow", "rope.scaling.yarn_beta_slow");

    /** The tensors of one expert, or of shared ones. */
    private static final Pattern EXPERT =
            Pattern.compile("model\\.layers\\.(\\d+)\\..*experts?\\.(?:(\\d+)\\.)?(\\w+)\\.weight");

    private static final Map<String, String> OF_EXPERTS =
            Map.of("w1", "gate", "w2", "down", "w3", "up", "gate_proj", "gate", "down_proj", "down", "up_proj", "up");

    private final Path directory;
    private final JsonNode config;
    private final String architecture;

    private ConvertedCheckpoint(Path directory) {
        this.directory = directory;
        this.config = JSON.readTree(directory.resolve("config.json"));
        String type = config.path("model_type").asString();
        this.architecture = ARCHITECTURES.getOrDefault(type, type.replace("_text", ""));
    }

    /** Writes a file with tensors of F32. */
    public static Path write(Path directory, Path file) throws IOException {
        new ConvertedCheckpoint(directory).writer(GgufType.F32, 0, 1).write(file);
        return file;
    }

    /** Bytes of the header of a file with tensors of F32. */
    public static int headerBytes(Path directory) throws IOException {
        return new ConvertedCheckpoint(directory).writer(GgufType.F32, 0, 1).header().length;
    }

    /** Writes a file with matrices of Q8_0. */
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
            List<Converted> tensors = tensors(weights, matrices);
            for (int i = part; i < tensors.size(); i += parts) {
                Converted tensor = tensors.get(i);
                writer.tensor(tensor.name, tensor.type, tensor.shape, tensor.bytes);
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
        boolean isLatent = architecture.equals("deepseek2");
        int headDim = config.path("head_dim").asInt(config.path("hidden_size").asInt() / heads);
        KEYS.forEach((field, key) -> {
            if (!(isLatent && field.equals("num_key_value_heads"))) {
                key(writer, key, config.path(field));
            }
        });
        if (isLatent) {
            latent(writer, rope);
        } else if (config.path("head_dim").isInt()) {
            writer.integer(architecture + ".attention.key_length", headDim);
            writer.integer(architecture + ".attention.value_length", headDim);
        }
        double share = rope.path("partial_rotary_factor").asDouble(1);
        writer.integer(architecture + ".rope.dimension_count", (int) (share * headDim));
        windows(writer);
        String type = rope.path("rope_type").asString("default");
        ROPE_KEYS.forEach((field, key) -> {
            // Llama 3's scaling has no keys, LongRoPE few.
            if (field.equals("rope_theta") || type.equals("yarn") || type.equals("longrope")) {
                key(writer, key, rope.path(field));
            }
        });
        switch (type) {
            case "llama3" -> {
                float[] divisors = divisors(rope, config.path("rope_theta").asDouble(), headDim / 2);
                writer.tensor("rope_freqs.weight", GgufType.F32, List.of((long) divisors.length), bytes(divisors));
            }
            case "longrope" -> {
                for (String length : List.of("long", "short")) {
                    float[] factors = new float[rope.path(length + "_factor").size()];
                    for (int i = 0; i < factors.length; i++) {
                        factors[i] =
                                (float) rope.path(length + "_factor").path(i).asDouble();
                    }
                    writer.tensor(
                            "rope_factors_%s.weight".formatted(length),
                            GgufType.F32,
                            List.of((long) factors.length),
                            bytes(factors));
                }
                double original = rope.path("original_max_position_embeddings").asDouble();
                double factor = config.path("max_position_embeddings").asDouble() / original;
                writer.number(
                        architecture + ".rope.scaling.attn_factor",
                        Math.sqrt(1 + Math.log(factor) / Math.log(original)));
            }
            case "default" -> {}
            default -> {
                writer.string(architecture + ".rope.scaling.type", type);
                writer.number(
                        architecture + ".rope.scaling.factor",
                        rope.path("factor").asDouble());
            }
        }
        switch (architecture) {
            case "gemma2", "gemma3" -> {
                if (architecture.equals("gemma3")) {
                    writer.integer(architecture + ".attention.sliding_window_pattern", 2);
                }
                writer.number(
                        architecture + ".attention.scale",
                        1 / Math.sqrt(config.path("query_pre_attn_scalar").asDouble()));
            }
            case "gpt-oss" -> {
                key(writer, "expert_feed_forward_length", config.path("intermediate_size"));
                List<String> tokens = new ArrayList<>(List.of("<|end|>", "<|return|>", "<|call|>"));
                for (int i = tokens.size(); i < config.path("vocab_size").asInt(); i++) {
                    tokens.add("token " + i);
                }
                writer.strings("tokenizer.ggml.tokens", tokens);
            }
            case "granite" -> writer.bool("granite.rope.scaling.finetuned", true);
            case "nemotron" -> key(writer, "attention.layer_norm_rms_epsilon", config.path("norm_eps"));
            default -> {}
        }
    }

    private void windows(GgufWriter writer) {
        if (List.of("qwen2", "qwen3", "qwen2moe", "qwen3moe", "starcoder2", "smollm3")
                .contains(architecture)) {
            return;
        }
        key(writer, "attention.sliding_window", config.path("sliding_window"));
        if (architecture.equals("olmo2") && config.path("sliding_window").isInt()) {
            JsonNode types = config.path("layer_types");
            byte[] slides = new byte[types.size()];
            for (int i = 0; i < slides.length; i++) {
                slides[i] = (byte) (types.path(i).asString().equals("sliding_attention") ? 1 : 0);
            }
            writer.array(architecture + ".attention.sliding_window_pattern", 7, slides.length, slides);
        }
    }

    private void latent(GgufWriter writer, JsonNode rope) {
        int rank = config.path("kv_lora_rank").asInt();
        int rotated = config.path("qk_rope_head_dim").asInt();
        String prefix = architecture + ".attention.";
        writer.integer(prefix + "head_count_kv", 1)
                .integer(prefix + "key_length", rank + rotated)
                .integer(prefix + "value_length", rank)
                .integer(prefix + "key_length_mla", rotated + plainKeys())
                .integer(prefix + "value_length_mla", config.path("v_head_dim").asInt());
        if (config.path("model_type").asString().equals("deepseek_v3")) {
            writer.integer(architecture + ".expert_gating_func", 2);
        }
        if (config.path("norm_topk_prob").asBoolean()) {
            writer.bool(architecture + ".expert_weights_norm", true);
        }
        if (rope.has("mscale_all_dim")) {
            writer.number(
                    architecture + ".rope.scaling.yarn_log_multiplier",
                    0.1 * rope.path("mscale_all_dim").asDouble());
        }
    }

    private int plainKeys() {
        return config.path("qk_nope_head_dim").asInt();
    }

    /** The divisors that files have in place of Llama 3's four numbers. */
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
        if (value.isInt() && !key.contains("beta")) {
            writer.integer(architecture + "." + key, value.asInt());
        } else if (value.isNumber()) {
            writer.number(architecture + "." + key, value.asDouble());
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

    private record Converted(String name, GgufType type, List<Long> shape, byte[] bytes) {}

    private List<Converted> tensors(SafetensorsFile weights, GgufType matrices) throws IOException {
        List<Converted> all = new ArrayList<>();
        Map<String, SortedMap<Integer, String>> experts = new TreeMap<>();
        for (String name : weights.names()) {
            TensorInfo info = weights.info(name);
            Matcher expert = EXPERT.matcher(name);
            if (architecture.equals("gpt-oss") && name.contains(".mlp.experts.")) {
                if (!name.endsWith("_scales")) {
                    all.addAll(ofGptOss(name, weights));
                }
            } else if (name.endsWith(".kv_b_proj.weight")) {
                all.addAll(expansions(name, info.shape(), floats(info, weights.data(name))));
            } else if (expert.matches() && expert.group(2) != null) {
                String own = "blk.%s.ffn_%s_exps.weight".formatted(expert.group(1), OF_EXPERTS.get(expert.group(3)));
                experts.computeIfAbsent(own, _ -> new TreeMap<>()).put(Integer.parseInt(expert.group(2)), name);
            } else {
                GgufType type = info.shape().size() > 1 && info.shape().getLast() % 32 == 0 ? matrices : GgufType.F32;
                float[] values = converted(name, info.shape(), floats(info, weights.data(name)));
                String own = expert.matches()
                        ? "blk.%s.ffn_%s_shexp.weight".formatted(expert.group(1), OF_EXPERTS.get(expert.group(3)))
                        : name(name);
                all.add(new Converted(own, type, info.shape(), packed(values, type)));
            }
        }
        for (Map.Entry<String, SortedMap<Integer, String>> layer : experts.entrySet()) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            List<Long> shape = new ArrayList<>();
            for (String name : layer.getValue().values()) {
                shape = new ArrayList<>(weights.info(name).shape());
                bytes.writeBytes(bytes(floats(weights.info(name), weights.data(name))));
            }
            shape.addFirst((long) layer.getValue().size());
            all.add(new Converted(layer.getKey(), GgufType.F32, shape, bytes.toByteArray()));
        }
        return all;
    }

    /** Keys of each head transposed, and values. */
    private List<Converted> expansions(String name, List<Long> shape, float[] rows) {
        int rank = shape.getLast().intValue();
        int heads = config.path("num_attention_heads").asInt();
        int keys = plainKeys();
        int all = shape.getFirst().intValue() / heads;
        float[] ofKeys = new float[heads * rank * keys];
        float[] ofValues = new float[heads * (all - keys) * rank];
        for (int head = 0; head < heads; head++) {
            for (int row = 0; row < all; row++) {
                for (int i = 0; i < rank; i++) {
                    float value = rows[(head * all + row) * rank + i];
                    if (row < keys) {
                        ofKeys[(head * rank + i) * keys + row] = value;
                    } else {
                        ofValues[(head * (all - keys) + row - keys) * rank + i] = value;
                    }
                }
            }
        }
        String layer = "blk." + name.split("\\.")[2];
        return List.of(
                new Converted(
                        layer + ".attn_k_b.weight",
                        GgufType.F32,
                        List.of((long) heads, (long) rank, (long) keys),
                        bytes(ofKeys)),
                new Converted(
                        layer + ".attn_v_b.weight",
                        GgufType.F32,
                        List.of((long) heads, (long) all - keys, (long) rank),
                        bytes(ofValues)));
    }

    /** Gate and up projection have their rows in turns; matrices are MXFP4, of which each file has other places for the fours, or transposed. */
    private List<Converted> ofGptOss(String name, SafetensorsFile weights) throws IOException {
        TensorInfo info = weights.info(name);
        List<Long> shape = info.shape();
        int experts = shape.getFirst().intValue();
        boolean isBias = name.endsWith("_bias");
        boolean isPacked = name.endsWith("_blocks");
        int rows = shape.get(isBias || isPacked ? 1 : 2).intValue();
        int columns = isBias
                ? 1
                : isPacked ? shape.get(2).intValue() * 32 : shape.get(1).intValue();
        byte[] scales = new byte[0];
        byte[] blocks = new byte[0];
        float[] plain = new float[0];
        if (isPacked) {
            scales = weights.data(name.replace("_blocks", "_scales")).toArray(ValueLayout.JAVA_BYTE);
            blocks = weights.data(name).toArray(ValueLayout.JAVA_BYTE);
        } else {
            plain = floats(info, weights.data(name));
        }
        List<String> parts = name.contains("gate_up") ? List.of("gate", "up") : List.of("down");
        List<Converted> all = new ArrayList<>();
        for (int part = 0; part < parts.size(); part++) {
            ByteBuffer bytes = ByteBuffer.allocate(
                            experts * rows / parts.size() * (isPacked ? columns / 32 * 17 : columns * 4))
                    .order(ByteOrder.LITTLE_ENDIAN);
            for (int expert = 0; expert < experts; expert++) {
                for (int row = part; row < rows; row += parts.size()) {
                    for (int column = 0; column < columns; column += isPacked ? 32 : 1) {
                        if (isPacked) {
                            int block = ((expert * rows + row) * columns + column) / 32;
                            bytes.put(scales[block]);
                            for (int i = 0; i < 16; i++) {
                                bytes.put((byte) (four(blocks, block, i) | four(blocks, block, 16 + i) << 4));
                            }
                        } else {
                            bytes.putFloat(plain[(expert * columns + column) * rows + row]);
                        }
                    }
                }
            }
            List<Long> ownShape = new ArrayList<>(List.of((long) experts, (long) rows / parts.size()));
            if (!isBias) {
                ownShape.add((long) columns);
            }
            all.add(new Converted(
                    "blk.%s.ffn_%s_exps.%s"
                            .formatted(name.split("\\.")[2], parts.get(part), isBias ? "bias" : "weight"),
                    isPacked ? GgufType.MXFP4 : GgufType.F32,
                    ownShape,
                    bytes.array()));
        }
        return all;
    }

    private static int four(byte[] blocks, int block, int index) {
        return blocks[block * 16 + index / 2] >> index % 2 * 4 & 15;
    }

    private String name(String tensor) {
        String part = tensor.replaceFirst("^model\\.layers\\.\\d+\\.", "");
        String layer = part.equals(tensor) ? "" : "blk." + tensor.split("\\.")[2] + ".";
        if (NAMES.containsKey(part)) {
            return layer + NAMES.get(part);
        }
        int dot = part.lastIndexOf('.');
        String stem = part.substring(0, dot);
        boolean isAfter = List.of("gemma2", "gemma3", "olmo2", "gpt-oss").contains(architecture);
        String own = stem.equals("post_attention_layernorm")
                ? isAfter ? "post_attention_norm" : "ffn_norm"
                : NAMES.getOrDefault(stem, stem);
        return layer + own + part.substring(dot);
    }

    private float[] converted(String name, List<Long> shape, float[] values) {
        if ((architecture.startsWith("gemma") || architecture.equals("nemotron")) && name.endsWith("norm.weight")) {
            float[] more = values.clone();
            for (int i = 0; i < more.length; i++) {
                more[i] += 1;
            }
            return more;
        }
        boolean queries = name.contains("q_proj");
        boolean turns = List.of("llama", "granite", "smollm3").contains(architecture);
        if (!turns || !(queries || name.contains("k_proj"))) {
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

    private static byte[] bytes(float[] values) {
        return packed(values, GgufType.F32);
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
