package baton.engine.model;

import baton.engine.gguf.GgufModel;
import baton.engine.kernel.Mxfp4Panels;
import baton.engine.model.Recipe.Experts;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.safetensors.SafetensorsException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * A checkpoint before it is loaded: also one without weights, and one that is refused.
 *
 * @param architecture the family that config.json names; empty if it names none
 * @param refusals the errors that loading would give one after the other, if the field of each was left out after it
 * @param missing the error of loading that names weights that are not there
 * @param config the shape; of a refused checkpoint the one without the refused fields, of an unsupported family that of a Llama or a
 *     Mixtral of its size; empty if config.json does not say
 * @param packing the form of packed weights; empty if there are none, and of a GGUF file if experts are not in mxfp4
 * @param fileBytes bytes of the files with weights
 */
public record CheckpointSurvey(
        Optional<String> architecture,
        List<String> refusals,
        Optional<String> missing,
        Optional<ModelConfig> config,
        Optional<String> packing,
        long fileBytes) {
    private static final String ARCHITECTURES = "architectures";

    /** Fields that a model of an unsupported family needs to be taken for a Llama of its size, and their other names. */
    private static final List<List<String>> SHAPE = List.of(
            List.of("hidden_size"),
            List.of("num_hidden_layers"),
            List.of("num_attention_heads"),
            List.of("num_key_value_heads"),
            List.of("vocab_size"),
            List.of("intermediate_size", "moe_intermediate_size"));

    private static final List<String> OPTIONAL =
            List.of("head_dim", "tie_word_embeddings", "dtype", "torch_dtype", "quantization_config");
    private static final List<String> EXPERTS = List.of("num_local_experts", "num_experts", "n_routed_experts");

    /** Layers, or experts of all layers. Of each limit models have a tenth at most. */
    private static final int MOST_PARTS = 1 << 18;

    private static final double MOST_PARAMETERS = 1e15;

    /** Keys of a token. */
    private static final double MOST_CACHED = 1e8;

    public CheckpointSurvey {
        refusals = List.copyOf(refusals);
    }

    /** Bytes that the weights take less in bf16, because the kernels that this process chooses keep experts in mxfp4. */
    public double savedBytes() {
        return packing.filter(ConfigFields.MXFP4::equals)
                .flatMap(_ -> config)
                .filter(model ->
                        KernelChoice.here(model, DType.BF16, Quantization.NONE).multipliesPairs())
                .map(model -> model.recipe().feedForward().stream()
                        .mapToDouble(each -> each instanceof Experts experts
                                ? 3.0 * model.hiddenSize() * experts.width() * experts.count()
                                : 0)
                        .sum())
                .map(weights -> weights * (DType.BF16.bytes() - Mxfp4Panels.BYTES_OF_WEIGHT))
                .orElse(0.0);
    }

    /** Whether it can be loaded, once all of its weights are there. */
    public boolean isSupported() {
        return refusals.isEmpty();
    }

    /**
     * Surveys a directory or a GGUF file.
     *
     * @throws IOException if a file that is there cannot be read
     */
    public static CheckpointSurvey of(Path model) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            ModelConfig config = checkpoint.config();
            return new CheckpointSurvey(
                    Optional.of(config.recipe().architecture()),
                    List.of(),
                    Optional.empty(),
                    Optional.of(config),
                    packing(model),
                    fileBytes(model));
        } catch (ConfigException | SafetensorsException e) {
            return refused(model, e);
        }
    }

    private static CheckpointSurvey refused(Path model, Exception failure) throws IOException {
        String message = String.valueOf(failure.getMessage());
        Survey survey =
                new Survey(String.valueOf(model.toAbsolutePath().normalize().getFileName()));
        Optional<JsonFields> json = json(model).map(survey::text);
        Optional<ModelConfig> config = json.flatMap(survey::withoutRefused);
        boolean isMissing = survey.refusals.isEmpty()
                && config.isPresent()
                && failure instanceof ConfigException of
                && of.field().equals("model");
        if (survey.refusals.isEmpty() && !isMissing) {
            survey.refusals.add(message);
        }
        return new CheckpointSurvey(
                json.map(each -> each.toJson().path(ARCHITECTURES).path(0).asString(""))
                        .filter(name -> !name.isEmpty()),
                List.copyOf(survey.refusals),
                Optional.of(message).filter(_ -> isMissing),
                config,
                packing(model),
                fileBytes(model));
    }

    private static Optional<String> packing(Path model) throws IOException {
        if (GgufModel.isFile(model)) {
            try (GgufModel file = GgufModel.open(model)) {
                return Optional.of(ConfigFields.MXFP4).filter(_ -> file.hasExpertsInMxfp4());
            } catch (ConfigException _) {
                return Optional.empty();
            }
        }
        return json(model).flatMap(whole -> ConfigFields.packing(new Survey("").text(whole)));
    }

    /** The config.json; empty if there is none. */
    private static Optional<JsonFields> json(Path model) throws IOException {
        try {
            if (GgufModel.isFile(model)) {
                try (GgufModel file = GgufModel.open(model)) {
                    return Optional.of(JsonFields.of(String.valueOf(model.getFileName()), file.config()));
                }
            }
            return Optional.of(Checkpoint.readConfig(model));
        } catch (ConfigException _) {
            return Optional.empty();
        }
    }

    private static long fileBytes(Path model) throws IOException {
        if (!Files.isDirectory(model)) {
            return Files.exists(model) ? Files.size(model) : 0;
        }
        long bytes = 0;
        try (Stream<Path> files = Files.list(model)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                bytes += file.toString().endsWith(".safetensors") ? Files.size(file) : 0;
            }
        }
        return bytes;
    }

    /** Reads a config.json again and again, each time without the field by which it was refused. */
    private static final class Survey {
        private final String name;
        private final Set<String> refusals = new LinkedHashSet<>();

        /** @param name of the model's directory or file */
        Survey(String name) {
            this.name = name;
        }

        /** The config.json of the language model alone; the whole where that is refused. */
        JsonFields text(JsonFields whole) {
            try {
                return TextTensors.config(whole).orElse(whole);
            } catch (ConfigException e) {
                refusals.add(e.getMessage());
                return whole;
            }
        }

        Optional<ModelConfig> withoutRefused(JsonFields fields) {
            try {
                ModelConfig config = CheckpointConfig.parse(name, fields);
                requireSize(fields, config);
                List<Integer> _ = CheckpointConfig.eosTokenIds(fields, config.vocabularySize());
                CheckpointConfig.requireRotation(fields, config);
                return Optional.of(config);
            } catch (ConfigException e) {
                String prefix = fields.field("");
                String path = prefix.substring(0, prefix.length() - 1);
                String field = fieldOf(e, prefix);
                ObjectNode json = fields.toJson();
                if (field.equals(ARCHITECTURES)) {
                    if (refusals.isEmpty()) {
                        refusals.add(e.getMessage());
                    }
                    return likeSupported(json).flatMap(like -> withoutRefused(JsonFields.of(path, like)));
                }
                if (json.has(field) || refusals.isEmpty()) {
                    refusals.add(e.getMessage());
                }
                return json.remove(field) == null ? Optional.empty() : withoutRefused(JsonFields.of(path, json));
            }
        }

        /** The field of config.json that an error is about, or in which its field is. */
        private static String fieldOf(ConfigException e, String prefix) {
            String field = e.field().startsWith(prefix) ? e.field().substring(prefix.length()) : "";
            return field.split("[.\\[]", 2)[0];
        }

        /** Sizes that a file has by mistake or malice would take the memory of this process, or be no numbers. */
        private static void requireSize(JsonFields json, ModelConfig config) {
            int layers = config.layers();
            boolean isLarge = layers > MOST_PARTS
                    || layers
                                    * (long) config.recipe()
                                            .experts()
                                            .map(Experts::count)
                                            .orElse(1)
                            > MOST_PARTS;
            double parameters = isLarge
                    ? Double.POSITIVE_INFINITY
                    : Checkpoint.tensorShapes(config).values().stream()
                            .mapToDouble(shape ->
                                    shape.stream().mapToDouble(each -> each).reduce(1, (a, b) -> a * b))
                            .sum();
            if (parameters > MOST_PARAMETERS || (double) layers * config.kvHeads() * config.headDim() > MOST_CACHED) {
                throw new ConfigException(
                        json.field("num_hidden_layers"),
                        "is %d, which with hidden_size %d, intermediate_size %d, vocab_size %d, %d heads of %d elements and experts makes no model that is known: these have at most %d layers or experts of all layers, %.0e parameters and %.0e elements of a token's keys"
                                .formatted(
                                        layers,
                                        config.hiddenSize(),
                                        config.intermediateSize(),
                                        config.vocabularySize(),
                                        config.kvHeads(),
                                        config.headDim(),
                                        MOST_PARTS,
                                        MOST_PARAMETERS,
                                        MOST_CACHED));
            }
        }
    }

    /** The config.json of a Llama, or with experts of a Mixtral, of the same size; that of its text model, if it has one. */
    private static Optional<ObjectNode> likeSupported(ObjectNode json) {
        JsonNode from = json.path("text_config") instanceof ObjectNode text ? text : json;
        ObjectNode like = JsonNodeFactory.instance.objectNode();
        for (List<String> names : SHAPE) {
            Optional<String> found =
                    names.reversed().stream().filter(from::hasNonNull).findFirst();
            if (found.isEmpty()) {
                return Optional.empty();
            }
            like.set(names.getFirst(), from.get(found.get()));
        }
        for (String field : OPTIONAL) {
            for (JsonNode each : List.of(json, from)) {
                Optional.ofNullable(each.get(field)).ifPresent(value -> like.set(field, value));
            }
        }
        like.set(
                "max_position_embeddings",
                from.path("max_position_embeddings").isInt()
                        ? from.get("max_position_embeddings")
                        : JsonNodeFactory.instance.numberNode(4096));
        Optional<JsonNode> experts = EXPERTS.stream()
                .map(from::get)
                .filter(Objects::nonNull)
                .filter(count -> count.isNumber() && count.asInt() > 0)
                .findFirst();
        experts.ifPresent(count -> like.set("num_local_experts", count));
        experts.map(_ -> from.get("num_experts_per_tok")).ifPresent(chosen -> like.set("num_experts_per_tok", chosen));
        like.putArray(ARCHITECTURES)
                .add((experts.isPresent() ? DecoderFamily.MIXTRAL : DecoderFamily.LLAMA).architecture());
        return Optional.of(like);
    }
}
