package baton.kv;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;

/** Element type of weights and of cached keys and values. */
public enum DType {
    BF16("bfloat16", "BF16", 2),
    F16("float16", "F16", 2),
    F32("float32", "F32", 4);

    private static final int BF16_NAN = 0x7fc0;
    private static final ValueLayout.OfShort SHORT =
            ValueLayout.JAVA_SHORT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfFloat FLOAT =
            ValueLayout.JAVA_FLOAT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

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

    /** The element at an offset, exactly. */
    public float get(MemorySegment memory, long offset) {
        return switch (this) {
            case BF16 -> Float.intBitsToFloat(memory.get(SHORT, offset) << 16);
            case F16 -> Float.float16ToFloat(memory.get(SHORT, offset));
            case F32 -> memory.get(FLOAT, offset);
        };
    }

    /** Puts the nearest number of this type, the even one of two, at an offset. */
    public void set(MemorySegment memory, long offset, float value) {
        switch (this) {
            case BF16 -> memory.set(SHORT, offset, bf16(value));
            case F16 -> memory.set(SHORT, offset, Float.floatToFloat16(value));
            case F32 -> memory.set(FLOAT, offset, value);
        }
    }

    /** The bits of the nearest bf16. */
    public static short bf16(float value) {
        int bits = Float.floatToRawIntBits(value);
        // Half of bf16's last place, less one if that place is even, carries where rounding goes up.
        return (short) (Float.isNaN(value) ? BF16_NAN : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
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
