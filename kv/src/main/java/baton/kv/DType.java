package baton.kv;

import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;

/** Element type of weights and of cached keys and values. */
public enum DType {
    BF16("bfloat16", "BF16", 2),
    F16("float16", "F16", 2),
    F32("float32", "F32", 4);

    private final String torchName;
    private final String safetensorsName;
    private final int bytes;

    DType(String torchName, String safetensorsName, int bytes) {
        this.torchName = torchName;
        this.safetensorsName = safetensorsName;
        this.bytes = bytes;
    }

    /** The name in config.json's {@code torch_dtype} and on vLLM's command line. */
    public String torchName() {
        return torchName;
    }

    /** The name in a safetensors header. */
    public String safetensorsName() {
        return safetensorsName;
    }

    /** Bytes of one element. */
    public int bytes() {
        return bytes;
    }

    /**
     * The type of that name, torch's ({@code bfloat16}), safetensors' ({@code BF16}) or vLLM's short form
     * ({@code half}, {@code float}).
     *
     * @throws ConfigException naming {@code field} if there is none
     */
    public static DType parse(String field, String name) {
        String wanted = name.toLowerCase(Locale.ROOT);
        for (DType type : values()) {
            if (wanted.equals(type.torchName) || wanted.equals(type.safetensorsName.toLowerCase(Locale.ROOT))) {
                return type;
            }
        }
        return switch (wanted) {
            case "half" -> F16;
            case "float" -> F32;
            default ->
                throw ConfigException.unsupported(
                        field,
                        name,
                        Arrays.stream(values()).map(DType::torchName).collect(Collectors.joining(", ")));
        };
    }
}
