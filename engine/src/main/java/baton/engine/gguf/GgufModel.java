package baton.engine.gguf;

import baton.engine.gguf.GgufFile.Tensor;
import baton.kv.ConfigException;
import baton.kv.safetensors.PackedTensorFile;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.node.ObjectNode;

/**
 * A model in a GGUF file, or in several that are named {@code NAME-00001-of-00003.gguf}, as the Hugging Face checkpoint that it was made
 * of: its config.json, and its tensors by the checkpoint's names. The changes of the conversion are undone while rows are read.
 */
public final class GgufModel implements PackedTensorFile {
    private static final Pattern PART = Pattern.compile("(.*)-(\\d{5})-of-(\\d{5})\\.gguf");

    private static final Pattern KEYS = Pattern.compile("(blk\\.\\d+)\\.attn_k_b\\.weight");
    private static final Pattern EXPERT = Pattern.compile("\\.experts\\..*\\.weight$");
    private static final String GATE = ".mlp.shared_expert_gate.weight";

    /** Factors of the rotation, which become fields of config.json. */
    private static final Set<String> OF_CONFIG =
            Set.of("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight");

    private final Path path;
    private final List<GgufFile> parts = new ArrayList<>();
    /** Set when the parts are open. */
    private @Nullable GgufArchitecture architecture;

    private final Map<String, Place> places = new HashMap<>();

    /**
     * A tensor and the file that has it.
     *
     * @param name in the file
     * @param tensor the tensor; of one with all experts of a layer, the part of one expert
     * @param values the part of a {@code kv_b_proj} beside these keys
     */
    private record Place(GgufFile file, String name, Tensor tensor, Optional<Place> values) {
        private Place(GgufFile file, String name, Tensor tensor) {
            this(file, name, tensor, Optional.empty());
        }

        private List<Long> shape() {
            List<Long> own = tensor.shape();
            return values.map(other -> other.tensor.shape())
                    .map(other -> List.of(own.getFirst() * (own.getLast() + other.get(1)), own.get(1)))
                    .orElse(own);
        }
    }

    private GgufModel(Path path) {
        this.path = path;
    }

    /** Whether a model is read by this class: it is a file. Checkpoints are directories. */
    public static boolean isFile(Path model) {
        return Files.isRegularFile(model);
    }

    /**
     * Opens a file, and with the first of several files the others.
     *
     * @throws ConfigException naming the file, the place and the value if it is damaged or of a kind that is not supported
     * @throws IOException if it cannot be read
     */
    public static GgufModel open(Path path) throws IOException {
        GgufModel model = new GgufModel(path);
        try {
            model.openParts();
            return model;
        } catch (IOException | RuntimeException e) {
            model.close();
            throw e;
        }
    }

    @Override
    public Path path() {
        return path;
    }

    /** The file with the metadata. */
    public GgufFile metadata() {
        return parts.getFirst();
    }

    /** The name without {@code .gguf} and without the number of a part. */
    public static String name(Path path) {
        String name = String.valueOf(path.getFileName());
        Matcher part = PART.matcher(name);
        return part.matches() ? part.group(1) : name.endsWith(".gguf") ? name.substring(0, name.length() - 5) : name;
    }

    /**
     * The config.json of the checkpoint.
     *
     * @throws ConfigException naming the key that is missing, malformed or asks for something unsupported
     */
    public ObjectNode config() {
        return new GgufConfig(this).json();
    }

    /** Whether all matrices of experts are in MXFP4. */
    public boolean hasExpertsInMxfp4() {
        Set<GgufType> types = places.entrySet().stream()
                .filter(place -> EXPERT.matcher(place.getKey()).find())
                .map(place -> place.getValue().tensor.type())
                .collect(Collectors.toSet());
        return types.equals(Set.of(GgufType.MXFP4));
    }

    /** Names that a checkpoint has, or the file's own for tensors that no checkpoint has. */
    @Override
    public Set<String> names() {
        return places.keySet();
    }

    /** The description of a tensor, with the type that rows are unpacked to. */
    @Override
    public TensorInfo info(String name) throws SafetensorsException {
        Place place = place(name);
        Tensor tensor = place.tensor;
        return new TensorInfo("F32", place.shape(), tensor.start(), tensor.start() + tensor.bytes());
    }

    /** The tensor as it is packed; of a {@code kv_b_proj} in two parts that of the keys. */
    @Override
    public MemorySegment data(String name) throws SafetensorsException {
        Place place = place(name);
        return place.file.data(place.tensor);
    }

    @Override
    public Rows rows(String name) {
        Place place = Objects.requireNonNull(places.get(name), name);
        Tensor tensor = place.tensor;
        if (place.values.isPresent()) {
            return expansion(place, place.values.get());
        }
        GgufArchitecture known = Objects.requireNonNull(architecture);
        int columns = Math.toIntExact(tensor.columns());
        boolean interleaved = known.interleaves(name);
        int heads = interleaved ? heads(name) : 1;
        boolean isVector = tensor.shape().size() == 1;
        Rows plain = plain(place.file, tensor);
        if (known.addsOne(name)) {
            return (row, to) -> {
                plain.read(row, to);
                for (int i = 0; i < columns; i++) {
                    to[i] -= 1;
                }
            };
        }
        if (!interleaved) {
            return plain;
        }
        long headRows = tensor.shape().getFirst() / heads;
        if (!isVector) {
            return (row, to) -> plain.read(interleaved(row, headRows), to);
        }
        return (row, to) -> {
            plain.read(row, to);
            float[] turns = to.clone();
            for (int i = 0; i < columns; i++) {
                to[i] = turns[(int) interleaved(i, headRows)];
            }
        };
    }

    private static Rows plain(GgufFile file, Tensor tensor) {
        int columns = Math.toIntExact(tensor.columns());
        MemorySegment data = file.data(tensor);
        byte[] packed = new byte[Math.toIntExact(tensor.type().rowBytes(columns))];
        return (row, to) -> {
            MemorySegment.copy(data, ValueLayout.JAVA_BYTE, row * packed.length, packed, 0, packed.length);
            tensor.type().unpack(packed, columns, to);
        };
    }

    /** The rows of each head's keys, which the file has as columns, and of its values. */
    private static Rows expansion(Place place, Place values) {
        int rank = Math.toIntExact(place.tensor.shape().get(1));
        int keyRows = Math.toIntExact(place.tensor.columns());
        long valueRows = values.tensor.shape().get(1);
        Rows ofKeys = plain(place.file, place.tensor);
        Rows ofValues = plain(values.file, values.tensor);
        float[][] keys = new float[rank][keyRows];
        long[] unpacked = {-1};
        return (row, to) -> {
            long head = row / (keyRows + valueRows);
            int inHead = (int) (row % (keyRows + valueRows));
            if (inHead >= keyRows) {
                ofValues.read(head * valueRows + inHead - keyRows, to);
                return;
            }
            for (int i = 0; i < rank && unpacked[0] != head; i++) {
                ofKeys.read(head * rank + i, keys[i]);
            }
            unpacked[0] = head;
            for (int i = 0; i < rank; i++) {
                to[i] = keys[i][inHead];
            }
        };
    }

    @Override
    public void close() {
        parts.forEach(GgufFile::close);
    }

    Optional<Tensor> tensor(String name) {
        return Optional.ofNullable(places.get(name)).map(Place::tensor);
    }

    List<Tensor> tensors() {
        return places.values().stream().map(Place::tensor).toList();
    }

    /** The elements of a vector that belongs to config.json. */
    Optional<float[]> ofConfig(String name) {
        for (GgufFile part : parts) {
            Tensor tensor = part.tensors().get(name);
            if (tensor != null) {
                if (tensor.type() != GgufType.F32 || tensor.bytes() > 1 << 20) {
                    throw part.damaged(
                            name, "is %s %s, must be F32 of a head's pairs".formatted(tensor.type(), tensor.shape()));
                }
                float[] values = new float[(int) (tensor.bytes() / Float.BYTES)];
                tensor.type().unpack(part.data(tensor).toArray(ValueLayout.JAVA_BYTE), values.length, values);
                return Optional.of(values);
            }
        }
        return Optional.empty();
    }

    /** Where the row of a head's half in a checkpoint is in the file: element i of half h is the element 2 i + h. */
    private static long interleaved(long row, long headRows) {
        long half = headRows / 2;
        long inHead = row % headRows;
        return row - inHead + inHead % half * 2 + inHead / half;
    }

    private int heads(String name) {
        GgufConfig config = new GgufConfig(this);
        return name.contains(".k_proj.") ? config.kvHeads() : config.heads();
    }

    private Place place(String name) throws SafetensorsException {
        Place place = places.get(name);
        if (place == null) {
            throw new SafetensorsException("%s: has no tensor '%s'".formatted(path, name));
        }
        return place;
    }

    private void openParts() throws IOException {
        GgufFile first = openPart(path);
        int count = first.integer("split.count").orElse(0);
        if (count > 1) {
            Matcher name = PART.matcher(path.toString());
            if (!name.matches() || Integer.parseInt(name.group(2)) != 1 || Integer.parseInt(name.group(3)) != count) {
                throw first.damaged(
                        "split.count",
                        "is %d, so the model is the file NAME-00001-of-%05d.gguf".formatted(count, count));
            }
            for (int i = 1; i < count; i++) {
                Path next = Path.of("%s-%05d-of-%05d.gguf".formatted(name.group(1), i + 1, count));
                if (!Files.isRegularFile(next)) {
                    throw first.damaged("split.count", "is %d, but there is no file %s".formatted(count, next));
                }
                GgufFile part = openPart(next);
                int number = part.integer("split.no").orElse(0);
                if (number != i) {
                    throw part.damaged("split.no", "is %d, must be %d".formatted(number, i));
                }
            }
            int tensors = parts.stream().mapToInt(part -> part.tensors().size()).sum();
            first.integer("split.tensors.count").filter(all -> all != tensors).ifPresent(all -> {
                throw first.damaged("split.tensors.count", "is %d, but the files have %d".formatted(all, tensors));
            });
        }
        GgufArchitecture known = GgufArchitecture.of(first);
        architecture = known;
        for (GgufFile part : parts) {
            part.tensors().forEach((name, tensor) -> {
                String own = known.checkpointName(name);
                if (own.contains("*")) {
                    putExperts(new Place(part, name, tensor), own);
                } else if (!OF_CONFIG.contains(name)) {
                    put(own, new Place(part, name, own.endsWith(GATE) ? asMatrix(tensor) : tensor));
                }
            });
        }
        for (String name : List.copyOf(places.keySet())) {
            Matcher keys = KEYS.matcher(name);
            if (keys.matches()) {
                join(keys.group(1), Objects.requireNonNull(places.remove(name)));
            }
        }
    }

    private void put(String name, Place place) {
        if (places.put(name, place) != null) {
            throw place.file.damaged(place.name, "is there twice");
        }
    }

    /** @param name with a {@code *} for an expert's number */
    private void putExperts(Place all, String name) {
        Tensor tensor = all.tensor;
        int dimensions = name.endsWith(".bias") ? 2 : 3;
        int experts = new GgufConfig(this).experts();
        if (tensor.shape().size() != dimensions || tensor.shape().getFirst() != experts) {
            throw all.file.damaged(
                    all.name,
                    "has the shape %s, must have %d dimensions, the first one of expert_count=%d"
                            .formatted(tensor.shape(), dimensions, experts));
        }
        long bytes = tensor.bytes() / experts;
        List<Long> shape = tensor.shape().subList(1, dimensions);
        for (int i = 0; i < experts; i++) {
            Tensor one = new Tensor(tensor.type(), shape, tensor.start() + i * bytes, bytes);
            put(name.replace("*", Integer.toString(i)), new Place(all.file, all.name, one));
        }
    }

    /** The gate of shared experts, which older files have as a vector. */
    private static Tensor asMatrix(Tensor gate) {
        return gate.shape().size() == 1
                ? new Tensor(gate.type(), List.of(1L, gate.columns()), gate.start(), gate.bytes())
                : gate;
    }

    /** Makes a {@code kv_b_proj} of the two tensors that files have for it. */
    private void join(String layer, Place keys) {
        Place values = places.remove(layer + ".attn_v_b.weight");
        if (values == null) {
            throw keys.file.damaged(keys.name, "is there, but no attn_v_b.weight");
        }
        List<Long> ofKeys = keys.tensor.shape();
        List<Long> ofValues = values.tensor.shape();
        if (ofKeys.size() != 3
                || ofValues.size() != 3
                || !ofKeys.getFirst().equals(ofValues.getFirst())
                || !ofKeys.get(1).equals(ofValues.getLast())) {
            throw keys.file.damaged(
                    keys.name,
                    "has the shape %s, attn_v_b.weight %s: must be [heads, kv_lora_rank, keys] and [heads, values, kv_lora_rank]"
                            .formatted(ofKeys, ofValues));
        }
        put(
                "model.layers.%s.self_attn.kv_b_proj.weight".formatted(layer.substring("blk.".length())),
                new Place(keys.file, keys.name, keys.tensor, Optional.of(values)));
    }

    private GgufFile openPart(Path file) throws IOException {
        GgufFile part = GgufFile.open(file);
        parts.add(part);
        return part;
    }
}
