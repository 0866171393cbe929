package baton.kv;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/** Element type of weights and of cached keys and values. */
public enum DType {
    BF16("bfloat16", "BF16", 2),
    F16("float16", "F16", 2),
    F32("float32", "F32", 4),
    /** Sign, four bits of exponent, three of the fraction; no infinity. Of KV caches alone: nothing is computed in it. */
    F8_E4M3("float8_e4m3fn", "F8_E4M3", 1);

    private static final int BF16_NAN = 0x7fc0;
    private static final float E4M3_LARGEST = 448;
    private static final int E4M3_NAN = 0x7f;

    /** Bits of fp32's fraction behind those of e4m3. */
    private static final int E4M3_SHIFT = 20;

    /** The smallest normal number of e4m3. */
    private static final float E4M3_NORMAL = 0x1p-6f;

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
            case F8_E4M3 -> ofE4m3(memory.get(ValueLayout.JAVA_BYTE, offset));
        };
    }

    /** Puts the nearest number of this type, the even one of two, at an offset; in e4m3 at most its largest. */
    public void set(MemorySegment memory, long offset, float value) {
        switch (this) {
            case BF16 -> memory.set(SHORT, offset, bf16(value));
            case F16 -> memory.set(SHORT, offset, Float.floatToFloat16(value));
            case F32 -> memory.set(FLOAT, offset, value);
            case F8_E4M3 -> memory.set(ValueLayout.JAVA_BYTE, offset, e4m3(value));
        }
    }

    private static float ofE4m3(byte bits) {
        int magnitude = bits & E4M3_NAN;
        // In fp16's place, where the exponent is 8 too small.
        float number = magnitude == E4M3_NAN ? Float.NaN : Float.float16ToFloat((short) (magnitude << 7)) * 0x1p8f;
        return bits < 0 ? -number : number;
    }

    private static byte e4m3(float value) {
        int sign = Float.floatToRawIntBits(value) >>> 31 << 7;
        if (Float.isNaN(value)) {
            return (byte) (sign | E4M3_NAN);
        }
        float magnitude = Math.min(Math.abs(value), E4M3_LARGEST);
        if (magnitude < E4M3_NORMAL) {
            return (byte) (sign | (int) Math.rint(magnitude * 0x1p9f));
        }
        int bits = Float.floatToRawIntBits(magnitude);
        int rounded = bits + (1 << E4M3_SHIFT - 1) - 1 + (bits >>> E4M3_SHIFT & 1);
        return (byte) (sign | (rounded >>> E4M3_SHIFT) - (127 - 7 << 3));
    }

    /** The bits of the nearest bf16. */
    public static short bf16(float value) {
        int bits = Float.floatToRawIntBits(value);
        // Half of bf16's last place, less one if that place is even, carries where rounding goes up.
        return (short) (Float.isNaN(value) ? BF16_NAN : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
    }

    /** Whether weights can have it and models be computed in it. */
    public boolean isComputed() {
        return this != F8_E4M3;
    }

    /**
     * The type of that torch's name.
     *
     * @throws ConfigException naming {@code field} if there is none
     */
    public static DType named(String field, String torchName) {
        return find(type -> type.torchName.equals(torchName))
                .orElseThrow(() -> ConfigException.unsupported(field, torchName, names(_ -> true)));
    }

    /**
     * The type of weights of that name.
     *
     * @throws ConfigException naming {@code field} if there is none
     */
    public static DType parse(String field, String name) {
        return computed(name).orElseThrow(() -> ConfigException.unsupported(field, name, names(DType::isComputed)));
    }

    /**
     * The type of weights of that name: torch's ({@code bfloat16}), safetensors' ({@code BF16}) or a short form ({@code half},
     * {@code fp16}, {@code float}, {@code fp32}).
     */
    public static Optional<DType> computed(String name) {
        String wanted = name.toLowerCase(Locale.ROOT);
        return switch (wanted) {
            case "half", "fp16" -> Optional.of(F16);
            case "float", "fp32" -> Optional.of(F32);
            default ->
                find(type -> type.isComputed()
                        && (wanted.equals(type.torchName)
                                || wanted.equals(type.safetensorsName.toLowerCase(Locale.ROOT))));
        };
    }

    private static Optional<DType> find(Predicate<DType> wanted) {
        return Arrays.stream(values()).filter(wanted).findFirst();
    }

    private static String names(Predicate<DType> of) {
        return Arrays.stream(values()).filter(of).map(DType::torchName).collect(Collectors.joining(", "));
    }
}
