package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.TensorFile;
import baton.kv.safetensors.TensorInfo;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import tools.jackson.databind.node.ObjectNode;

/**
 * The language model of a checkpoint that has a vision tower beside it: a config.json with a {@code text_config}, and tensor names that
 * begin with the part that they belong to. The other parts are left out.
 */
final class TextTensors implements TensorFile {
    /** Beginnings of names in files, and their replacements for the language model alone. */
    private static final List<Map.Entry<String, String>> PREFIXES = List.of(
            Map.entry("language_model.model.", "model."),
            Map.entry("language_model.lm_head.", "lm_head."),
            Map.entry("model.language_model.", "model."),
            Map.entry("lm_head.", "lm_head."));

    /**
     * A kind of such checkpoints.
     *
     * @param text architecture of the language model
     * @param modelType its {@code model_type}
     * @param defaults fields of the language model that files leave out
     */
    private record Kind(String text, String modelType, Map<String, Integer> defaults) {}

    private static final Map<String, Kind> KINDS = Map.of(
            "Gemma3ForConditionalGeneration",
            new Kind(
                    "Gemma3ForCausalLM",
                    "gemma3_text",
                    Map.of(
                            "vocab_size", 262208,
                            "hidden_size", 2304,
                            "intermediate_size", 9216,
                            "num_hidden_layers", 26,
                            "num_attention_heads", 8,
                            "max_position_embeddings", 131072)),
            "Mistral3ForConditionalGeneration",
            new Kind("MistralForCausalLM", "mistral", Map.of()));

    private final TensorFile whole;
    private final Map<String, String> names = new TreeMap<>();

    /** @param whole is closed with this */
    TextTensors(TensorFile whole) {
        this.whole = whole;
        whole.names().forEach(name -> nameOf(name).ifPresent(own -> names.put(own, name)));
    }

    /** The config.json of the language model, if it is one part of several. */
    static Optional<JsonFields> config(JsonFields json) {
        return json.value("architectures")
                .filter(names -> names.size() == 1)
                .flatMap(names -> Optional.ofNullable(KINDS.get(names.path(0).asString(""))))
                .map(kind -> config(json, kind));
    }

    private static JsonFields config(JsonFields json, Kind kind) {
        JsonFields text = json.object("text_config")
                .orElseThrow(() -> new ConfigException(json.field("text_config"), "is missing"));
        text.string("model_type").filter(type -> !type.equals(kind.modelType)).ifPresent(type -> {
            throw ConfigException.unsupported(text.field("model_type"), type, kind.modelType);
        });
        ObjectNode own = text.toJson();
        own.putArray("architectures").add(kind.text);
        for (String name : List.of("dtype", "torch_dtype", "eos_token_id", "quantization_config")) {
            json.value(name).filter(_ -> text.value(name).isEmpty()).ifPresent(value -> own.set(name, value));
        }
        kind.defaults.forEach((name, value) -> {
            if (text.value(name).isEmpty()) {
                own.put(name, value);
            }
        });
        return JsonFields.of(json.field("text_config"), own);
    }

    /** The name that a tensor has in a checkpoint of the language model alone; empty if it belongs to another part. */
    static Optional<String> nameOf(String name) {
        return PREFIXES.stream()
                .filter(prefix -> name.startsWith(prefix.getKey()))
                .map(prefix ->
                        prefix.getValue() + name.substring(prefix.getKey().length()))
                .findFirst();
    }

    @Override
    public Path path() {
        return whole.path();
    }

    @Override
    public Set<String> names() {
        return names.keySet();
    }

    @Override
    public TensorInfo info(String name) throws SafetensorsException {
        return whole.info(Objects.requireNonNullElse(names.get(name), name));
    }

    @Override
    public MemorySegment data(String name) throws SafetensorsException {
        return whole.data(Objects.requireNonNullElse(names.get(name), name));
    }

    @Override
    public void close() {
        whole.close();
    }
}
