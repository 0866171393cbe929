package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.Sha256;
import baton.store.StoreFormat;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.core.json.JsonWriteFeature;
import tools.jackson.databind.SerializationFeature;
import tools.jackson.databind.json.JsonMapper;

/**
 * Where files are below the root: the structure of vLLM's fs tier ({@code vllm/v1/kv_offload/file_mapper.py}).
 *
 * <pre>
 * &lt;model&gt;_&lt;12 hex&gt;/config.json                       the fields
 * &lt;model&gt;_&lt;12 hex&gt;_r&lt;rank&gt;/&lt;hhh&gt;/&lt;hh&gt;_g&lt;group&gt;/&lt;hash&gt;.bin  a value; hhh and hh are the first digits of its hash
 * </pre>
 *
 * The 12 digits are the first of the SHA-256 of the fields as compact JSON with sorted names, in ASCII, as Python's {@code json.dumps}
 * writes it. Equal fields share files, and all other ones never meet.
 */
public final class FsPathLayout {
    static final String CONFIG = "config.json";
    static final String ENGINE = "inference_engine";
    static final String BATON = "baton";

    private static final int DIGEST_DIGITS = 12;

    /** File systems allow 255 bytes. */
    private static final int LONGEST_NAME = 160;

    /** The version of the form of a value's file, beside the facts in {@link StoreFormat}. */
    private static final int FILE_VERSION = 1;

    private static final JsonMapper MAPPER = JsonMapper.builder(JsonFactory.builder()
                    .enable(JsonWriteFeature.ESCAPE_NON_ASCII)
                    .disable(JsonWriteFeature.WRITE_HEX_UPPER_CASE)
                    .build())
            .enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS)
            .build();

    private final String directory;
    private final String json;

    private FsPathLayout(String safeName, Map<String, ?> fields) {
        this.json = MAPPER.writeValueAsString(fields);
        this.directory =
                safeName + "_" + HexFormat.of().formatHex(Sha256.of(json)).substring(0, DIGEST_DIGITS);
    }

    /**
     * That of vLLM's files with these fields.
     *
     * @param fields strings, numbers, booleans, lists and maps of them; {@code model_name} is among them
     */
    public static FsPathLayout ofFields(Map<String, ?> fields) {
        return new FsPathLayout(String.valueOf(fields.get("model_name")).replace('/', '_'), fields);
    }

    /** The layout of Baton's files of a format: its fields are all properties that make values interchangeable. */
    static FsPathLayout of(StoreFormat format) {
        Map<String, Object> fields = new TreeMap<>();
        fields.put("model_name", format.model().name());
        fields.put("tokens_per_hash", format.layout().blockSize());
        fields.put("blocks_per_file", format.blocksPerChunk());
        fields.put("tp_size", format.tensorParallelSize());
        fields.put("pp_size", format.pipelineParallelSize());
        fields.put("pcp_size", 1);
        fields.put("dcp_size", 1);
        fields.put("dtype", format.layout().dtype().torchName());
        fields.put(
                "kv_cache_groups",
                List.of(Map.of(
                        "layers",
                        format.layout().layers(),
                        "tokens_per_block",
                        format.layout().blockSize())));
        fields.put(ENGINE, BATON);
        fields.put("model_digest", format.model().digest());
        fields.put("kv_layout", format.layout().describe());
        fields.put("store_format", format.describe());
        fields.put("value_bytes", format.valueBytes());
        fields.put("file_version", FILE_VERSION);
        // In ASCII, and short: the allowed names depend on the locale and the file system. The digest makes names
        // distinct.
        String safe = format.model().name().replaceAll("[^A-Za-z0-9._-]", "_");
        return new FsPathLayout(safe.substring(0, Math.min(safe.length(), LONGEST_NAME)), fields);
    }

    /** The directory of {@link #CONFIG}, and the beginning of the name of that of the values. */
    public String directory() {
        return directory;
    }

    /** The fields as compact JSON, of which the digest is made. */
    public String json() {
        return json;
    }

    /** The fields as JSON for {@link #CONFIG}. */
    String prettyJson() {
        return MAPPER.writerWithDefaultPrettyPrinter().writeValueAsString(MAPPER.readValue(json, Map.class));
    }

    /** SHA-256 of the fields. */
    byte[] digest() {
        return Sha256.of(json);
    }

    /** The directory of the values of a rank. */
    public String values(int rank) {
        return directory + "_r" + rank;
    }

    /** A value's file. */
    public Path value(Path root, int rank, String hash, int group) {
        return root.resolve(values(rank), hash.substring(0, 3), hash.substring(3, 5) + "_g" + group, hash + ".bin");
    }

    /** The hash that a name of 64 digits is of. */
    static BlockHash hash(String hex) {
        return new BlockHash(
                Long.parseUnsignedLong(hex, 0, 16, 16),
                Long.parseUnsignedLong(hex, 16, 32, 16),
                Long.parseUnsignedLong(hex, 32, 48, 16),
                Long.parseUnsignedLong(hex, 48, 64, 16));
    }
}
