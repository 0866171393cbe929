package baton.engine.model;

import baton.engine.gguf.GgufModel;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.ModelFingerprint;
import baton.kv.Sha256;
import baton.kv.safetensors.PackedTensorFile;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.TensorFile;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.math.BigInteger;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.SequencedMap;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A Hugging Face checkpoint directory of a decoder: config.json, the weights in model.safetensors or in the shards of
 * model.safetensors.index.json, mapped into memory, and generation_config.json if there is one; or a GGUF file, which has the same.
 * Opening checks that every tensor of the model is there in the right shape, and that the files have no tensor by which the model would
 * compute something else.
 */
public final class Checkpoint implements AutoCloseable {
    private static final int FINGERPRINT_SAMPLE_BYTES = 4096;

    private static final Logger LOG = LoggerFactory.getLogger(Checkpoint.class);

    private static final String CONFIG = "config.json";
    private static final String SINGLE = "model.safetensors";
    private static final String INDEX = "model.safetensors.index.json";
    private static final String EMBEDDING = "model.embed_tokens.weight";
    private static final String OUTPUT = "lm_head.weight";

    private static final Pattern LAYER = Pattern.compile("^model\\.layers\\.(\\d+)\\.");

    /** Buffers that transformers 4 saved and that follow from config.json. */
    private static final Pattern ROTARY_BUFFER =
            Pattern.compile("^model\\.(layers\\.\\d+\\.self_attn\\.)?rotary_emb\\.(inv_freq|cos_cached|sin_cached)$");

    private final ModelConfig config;

    /** Layers behind the model's, by which several tokens could be predicted at once; they are not used. */
    private final int predictionLayers;

    private final List<Integer> eosTokenIds;
    private final List<Integer> ownEosTokenIds;
    private final GenerationDefaults generationDefaults;
    private final Map<Path, TensorFile> files = new HashMap<>();
    private final SequencedMap<String, TensorFile> fileOfTensor = new TreeMap<>();
    /** Whether the files have other parts than the language model. */
    private final boolean isTextPart;

    private Checkpoint(Path directory, GenerationConfig generation) throws IOException {
        try {
            boolean isGguf = GgufModel.isFile(directory);
            JsonFields whole = isGguf ? openGguf(directory) : readConfig(directory);
            Optional<JsonFields> text = TextTensors.config(whole);
            isTextPart = text.isPresent();
            JsonFields json = text.orElse(whole);
            Path last = directory.toRealPath().getFileName();
            String name = isGguf ? GgufModel.name(directory) : last == null ? "" : last.toString();
            config = CheckpointConfig.parse(name, json);
            predictionLayers =
                    json.integerAtLeast("num_nextn_predict_layers", 0).orElse(0);
            Optional<JsonFields> generationFile = generation.read(directory);
            ownEosTokenIds = CheckpointConfig.eosTokenIds(json, config.vocabularySize());
            eosTokenIds = generationFile.isPresent()
                    ? CheckpointConfig.eosTokenIds(generationFile.get(), config.vocabularySize())
                    : ownEosTokenIds;
            generationDefaults = generation.defaults(generationFile);
            if (!isGguf) {
                openWeights(directory);
            }
            Optional<Fp8Weights> fp8 = ConfigFields.fp8Weights(json, DecoderFamily.of(json));
            if (fp8.isPresent()) {
                fp8.get().unpack(directory, fileOfTensor);
            }
            checkTensors(directory);
            CheckpointConfig.requireRotation(json, config);
            Set<String> unknown = ConfigFields.unknown(json);
            if (!unknown.isEmpty()) {
                LOG.warn(
                        "{}: fields {} mean nothing to {} and are not used",
                        isGguf ? directory : directory.resolve(CONFIG),
                        unknown,
                        config.recipe().architecture());
            }
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    /**
     * Opens a checkpoint directory or a GGUF file.
     *
     * @throws ConfigException naming the file and field if it is no checkpoint or of a kind that is not supported
     * @throws SafetensorsException naming the file and tensor if a weight is missing, misshapen or cut off
     * @throws IOException if a file cannot be read
     */
    public static Checkpoint open(Path directory) throws IOException {
        return open(directory, GenerationConfig.CHECKPOINT);
    }

    /** Opens as {@link #open(Path)} does, with another generation_config.json. */
    public static Checkpoint open(Path directory, GenerationConfig generation) throws IOException {
        return new Checkpoint(directory, generation);
    }

    public ModelConfig config() {
        return config;
    }

    /**
     * Tokens that end a generation, as in vLLM: the tokenizer's, and those of generation_config.json, or of config.json where there
     * is no such file. If these are none, config.json's, so that an answer can end.
     */
    public Set<Integer> eosTokenIds(Optional<Integer> tokenizers) {
        Set<Integer> ids = new TreeSet<>(eosTokenIds);
        tokenizers.filter(id -> id < config.vocabularySize()).ifPresent(ids::add);
        return ids.isEmpty() ? Set.copyOf(ownEosTokenIds) : ids;
    }

    public GenerationDefaults generationDefaults() {
        return generationDefaults;
    }

    /**
     * A digest over the shape of the model and over each of its tensors' name, type, shape and some of its bytes. It does not
     * depend on the directory's name, on how the weights are cut into files, or on anything that does not change the model's results; a
     * fine-tune, which touches weights everywhere, changes it.
     */
    public ModelFingerprint fingerprint() throws IOException {
        MessageDigest digest = Sha256.begin();
        Optional<Rotation> rotation = config.recipe().layers().getFirst().rotation();
        String architecture =
                "vocab=%d hidden=%d intermediate=%d layers=%d heads=%d kv_heads=%d head_dim=%d eps=%s theta=%s rope=%s tied=%s window=%s\n"
                        .formatted(
                                config.vocabularySize(),
                                config.hiddenSize(),
                                config.intermediateSize(),
                                config.layers(),
                                config.heads(),
                                config.kvHeads(),
                                config.headDim(),
                                config.rmsNormEps(),
                                rotation.map(each -> Double.toString(each.theta()))
                                        .orElse("none"),
                                rotation.flatMap(Rotation::scaling)
                                        .map(Object::toString)
                                        .orElse("default"),
                                config.tiedEmbeddings(),
                                windows(config.recipe()));
        digest.update(architecture.getBytes(StandardCharsets.UTF_8));
        digest.update(config.recipe().traits().getBytes(StandardCharsets.UTF_8));
        for (String name : tensorShapes(config).keySet()) {
            TensorInfo info = info(name);
            digest.update(
                    "%s %s %s\n".formatted(name, info.dtype(), info.shape()).getBytes(StandardCharsets.UTF_8));
            MemorySegment data = data(name);
            long sample = Math.min(FINGERPRINT_SAMPLE_BYTES, data.byteSize());
            long last = data.byteSize() - sample;
            for (long at : new long[] {0, last / 2, last}) {
                digest.update(data.asSlice(at, sample).asByteBuffer());
            }
        }
        return new ModelFingerprint(config.name(), HexFormat.of().formatHex(digest.digest()));
    }

    /** The windows and the layers of each, in a form that instances of other versions write too. */
    private static String windows(Recipe recipe) {
        SequencedMap<Integer, List<Integer>> layers = new TreeMap<>();
        for (int layer = 0; layer < recipe.layers().size(); layer++) {
            if (recipe.layers().get(layer).reach() instanceof Window window) {
                layers.computeIfAbsent(window.positions(), _ -> new ArrayList<>())
                        .add(layer);
            }
        }
        return layers.isEmpty()
                ? "none"
                : layers.entrySet().stream()
                        .map(window ->
                                "SlidingWindow[positions=%d, layers=%s]".formatted(window.getKey(), window.getValue()))
                        .collect(Collectors.joining(" "));
    }

    /** Unmaps the weights. A loaded model does not need them any more. */
    @Override
    public void close() {
        files.values().forEach(TensorFile::close);
        files.clear();
        fileOfTensor.clear();
    }

    TensorInfo info(String tensor) throws SafetensorsException {
        return file(tensor).info(tensor);
    }

    MemorySegment data(String tensor) throws SafetensorsException {
        return file(tensor).data(tensor);
    }

    /** The tensors of a model of that shape by name, in name order. */
    static SequencedMap<String, List<Long>> tensorShapes(ModelConfig config) {
        long hidden = config.hiddenSize();
        SequencedMap<String, List<Long>> shapes = new TreeMap<>();
        shapes.put(EMBEDDING, List.of((long) config.vocabularySize(), hidden));
        for (int layer = 0; layer < config.layers(); layer++) {
            String prefix = "model.layers." + layer + ".";
            config.recipe().shapes(layer, config).forEach((name, shape) -> shapes.put(prefix + name, shape));
        }
        shapes.put("model.norm.weight", List.of(hidden));
        if (config.recipe().centersNorms()) {
            shapes.put("model.norm.bias", List.of(hidden));
        }
        if (!config.tiedEmbeddings()) {
            shapes.put(OUTPUT, List.of((long) config.vocabularySize(), hidden));
        }
        return shapes;
    }

    /**
     * A tensor's rows; a vector's elements are rows. Packed ones are unpacked.
     *
     * @param dtype that they are unpacked to
     * @param arena of unpacked rows
     */
    Matrix matrix(String tensor, DType dtype, ParallelFor threads, Arena arena) throws IOException {
        TensorInfo info = info(tensor);
        boolean isVector = info.shape().size() == 1;
        long rows = info.shape().getFirst();
        long columns = isVector ? 1 : info.shape().getLast();
        if (!(file(tensor) instanceof PackedTensorFile packed)) {
            return Matrix.dense(data(tensor), rows, columns, dtypeOf(info).orElseThrow());
        }
        MemorySegment memory = HugePages.allocate(arena, rows * columns * dtype.bytes(), "unpacked weights");
        Matrix unpacked = isVector ? Matrix.dense(memory, 1, rows, dtype) : Matrix.dense(memory, rows, columns, dtype);
        threads.parallelFor(unpacked.rows(), Matrix.PIECE, (_, first, end) -> {
            RowBuffer row = new RowBuffer(unpacked.columns());
            PackedTensorFile.Rows source = packed.rows(tensor);
            for (int i = first; i < end; i++) {
                source.read(i, row.values());
                row.store(unpacked, i, 0, unpacked.columns());
            }
        });
        return Matrix.dense(memory, rows, columns, dtype);
    }

    static JsonFields readConfig(Path directory) throws IOException {
        Path configFile = directory.resolve(CONFIG);
        if (!Files.isDirectory(directory)) {
            throw new ConfigException("model", "no directory '" + directory + "'");
        }
        if (!Files.isRegularFile(configFile)) {
            throw new ConfigException("model", "'" + directory + "' is no checkpoint: config.json is missing");
        }
        return readJson(configFile);
    }

    private JsonFields openGguf(Path path) throws IOException {
        GgufModel model = GgufModel.open(path);
        files.put(path, model);
        model.names().forEach(name -> fileOfTensor.put(name, model));
        return JsonFields.of(String.valueOf(path.getFileName()), model.config());
    }

    private void openWeights(Path directory) throws IOException {
        Path index = directory.resolve(INDEX);
        Path single = directory.resolve(SINGLE);
        boolean isSingle = Files.exists(single);
        if (Files.exists(index)) {
            openIndexed(directory, readJson(index), isSingle);
        } else if (isSingle) {
            TensorFile file = openFile(single);
            file.names().forEach(name -> fileOfTensor.put(name, file));
        } else {
            throw new ConfigException("model", "'" + directory + "' has neither " + SINGLE + " nor " + INDEX);
        }
    }

    private void openIndexed(Path directory, JsonFields json, boolean hasSingle) throws IOException {
        JsonFields weights = json.object("weight_map")
                .orElseThrow(() -> new ConfigException(json.field("weight_map"), "is missing"));
        for (String tensor : weights.names()) {
            String shard = weights.string(tensor).orElse("");
            if (shard.isEmpty() || shard.contains("/")) {
                throw new ConfigException(weights.field(tensor), "is '" + shard + "', must be a file beside the index");
            }
            if (hasSingle && !shard.equals(SINGLE)) {
                throw new ConfigException(
                        weights.field(tensor),
                        "is '%s', but there is a %s too; '%s' must have one of the two"
                                .formatted(shard, SINGLE, directory));
            }
            TensorFile file = openFile(directory.resolve(shard));
            Optional<String> own = isTextPart ? TextTensors.nameOf(tensor) : Optional.of(tensor);
            if (own.isPresent()) {
                file.info(own.get());
                fileOfTensor.put(own.get(), file);
            }
        }
        for (TensorFile file : files.values()) {
            for (String name : file.names()) {
                if (!file.equals(fileOfTensor.get(name))) {
                    throw new SafetensorsException("%s: weight '%s' is not in the weight_map of %s as this file's"
                            .formatted(file.path(), name, INDEX));
                }
            }
        }
    }

    private TensorFile openFile(Path path) throws IOException {
        TensorFile file = files.get(path);
        if (file == null) {
            if (!Files.isRegularFile(path)) {
                throw new ConfigException("model", "'" + path + "' is named by the index but missing");
            }
            SafetensorsFile opened = SafetensorsFile.open(path);
            file = isTextPart ? new TextTensors(opened) : opened;
            files.put(path, file);
        }
        return file;
    }

    private void checkTensors(Path directory) throws IOException {
        // Before a list of the tensors of any number of layers and experts is made.
        if (config.layers() > fileOfTensor.size()) {
            throw new SafetensorsException("%s: config.json.num_hidden_layers is %d, but the files have only %d weights"
                    .formatted(directory, config.layers(), fileOfTensor.size()));
        }
        boolean isGptOss = config.recipe().architecture().equals(DecoderFamily.GPT_OSS.architecture());
        if (isGptOss && !GgufModel.isFile(directory)) {
            GptOssExperts.divide(directory, fileOfTensor, config);
        }
        long experts = config.recipe().feedForward().stream()
                .mapToLong(each -> each instanceof Experts some ? some.count() : 0)
                .sum();
        if (experts > fileOfTensor.size()) {
            throw new SafetensorsException(
                    "%s: config.json has %d experts in all layers, but the files have only %d weights"
                            .formatted(directory, experts, fileOfTensor.size()));
        }
        SequencedMap<String, List<Long>> shapes = tensorShapes(config);
        for (Map.Entry<String, List<Long>> wanted : shapes.entrySet()) {
            String name = wanted.getKey();
            if (!fileOfTensor.containsKey(name)) {
                throw new SafetensorsException("%s: weight '%s' is missing".formatted(directory, name));
            }
            TensorInfo info = info(name);
            if (!info.shape().equals(wanted.getValue())) {
                throw new SafetensorsException("%s: weight '%s' has shape %s, config.json wants %s"
                        .formatted(file(name).path(), name, info.shape(), wanted.getValue()));
            }
            if (dtypeOf(info).isEmpty()) {
                throw new SafetensorsException("%s: weight '%s' has dtype %s, supported: BF16, F16, F32"
                        .formatted(file(name).path(), name, info.dtype()));
            }
        }
        for (String name : fileOfTensor.keySet()) {
            if (!shapes.containsKey(name)) {
                refuseUnlessHarmless(name);
            }
        }
    }

    /** A weight that the model of config.json has not is part of a model that computes something else. */
    private void refuseUnlessHarmless(String name) throws SafetensorsException {
        Matcher layer = LAYER.matcher(name);
        if (layer.find() && new BigInteger(layer.group(1)).compareTo(BigInteger.valueOf(config.layers())) >= 0) {
            if (new BigInteger(layer.group(1)).compareTo(BigInteger.valueOf(config.layers() + predictionLayers)) < 0) {
                return;
            }
            throw new SafetensorsException(
                    "%s: weight '%s' is of a layer beyond config.json.num_hidden_layers, which is %d"
                            .formatted(file(name).path(), name, config.layers()));
        }
        if (ROTARY_BUFFER.matcher(name).find()) {
            return;
        }
        if (!name.equals(OUTPUT)) {
            throw new SafetensorsException("%s: weight '%s' is of no part of the %s that config.json describes"
                    .formatted(file(name).path(), name, config.recipe().architecture()));
        }
        if (!info(OUTPUT).dtype().equals(info(EMBEDDING).dtype())
                || data(OUTPUT).mismatch(data(EMBEDDING)) >= 0) {
            throw new SafetensorsException(
                    "%s: weight '%s' differs from '%s', but config.json.tie_word_embeddings is true; it must be false"
                            .formatted(file(name).path(), OUTPUT, EMBEDDING));
        }
    }

    static Optional<DType> dtypeOf(TensorInfo info) {
        for (DType type : DType.values()) {
            if (type.isComputed() && type.safetensorsName().equals(info.dtype())) {
                return Optional.of(type);
            }
        }
        return Optional.empty();
    }

    private TensorFile file(String tensor) {
        return Objects.requireNonNull(fileOfTensor.get(tensor), tensor);
    }

    static JsonFields readJson(Path file) throws IOException {
        String name = Objects.requireNonNull(file.getFileName()).toString();
        try {
            return JsonFields.parse(name, Files.readString(file));
        } catch (CharacterCodingException e) {
            throw new ConfigException(name, "is not UTF-8 text", e);
        }
    }
}
