package baton.engine.gguf;

import java.util.Arrays;
import java.util.Optional;
import java.util.stream.Collectors;

/**
 * The types of tensors, and how their blocks are unpacked: elements of a row in blocks of {@link #blockElements}, {@link #blockBytes} each.
 * The letter K is of blocks of 256 elements that have scales of parts, which are quantised themselves.
 */
enum GgufType {
    F32(0, 1, 4),
    F16(1, 1, 2),
    Q4_0(2, 32, 18),
    Q4_1(3, 32, 20),
    Q5_0(6, 32, 22),
    Q5_1(7, 32, 24),
    Q8_0(8, 32, 34),
    Q4_K(12, 256, 144),
    Q5_K(13, 256, 176),
    Q6_K(14, 256, 210),
    BF16(30, 1, 2),
    MXFP4(39, 32, 17);

    private final int id;
    private final int blockElements;
    private final int blockBytes;

    GgufType(int id, int blockElements, int blockBytes) {
        this.id = id;
        this.blockElements = blockElements;
        this.blockBytes = blockBytes;
    }

    /** The type with that number in files. */
    static Optional<GgufType> of(long id) {
        return Arrays.stream(values()).filter(type -> type.id == id).findFirst();
    }

    /** All, for errors. */
    static String supported() {
        return Arrays.stream(values()).map(type -> type + " (" + type.id + ")").collect(Collectors.joining(", "));
    }

    /** The number in files. */
    int id() {
        return id;
    }

    int blockElements() {
        return blockElements;
    }

    /** Bytes of a row of so many elements, which are whole blocks. */
    long rowBytes(long elements) {
        return Math.multiplyExact(elements / blockElements, blockBytes);
    }

    /**
     * Unpacks a row.
     *
     * @param packed its bytes, from the first one
     * @param elements how many, whole blocks
     */
    void unpack(byte[] packed, int elements, float[] to) {
        for (int block = 0; block < elements / blockElements; block++) {
            int from = block * blockBytes;
            int first = block * blockElements;
            switch (this) {
                case F32 -> to[first] = Float.intBitsToFloat(halves(packed, from + 2) << 16 | halves(packed, from));
                case F16 -> to[first] = half(packed, from);
                case BF16 -> to[first] = Float.intBitsToFloat(halves(packed, from) << 16);
                case Q8_0 -> {
                    float scale = half(packed, from);
                    for (int i = 0; i < 32; i++) {
                        to[first + i] = scale * packed[from + 2 + i];
                    }
                }
                case Q4_0 -> fours(packed, from + 2, half(packed, from), 8, -0f, to, first);
                case Q4_1 -> fours(packed, from + 4, half(packed, from), 0, half(packed, from + 2), to, first);
                case Q5_0 -> fives(packed, from + 2, half(packed, from), 16, -0f, to, first);
                case Q5_1 -> fives(packed, from + 4, half(packed, from), 0, half(packed, from + 2), to, first);
                case Q4_K -> partsOf32(packed, from, from + 16, -1, to, first);
                case Q5_K -> partsOf32(packed, from, from + 48, from + 16, to, first);
                case Q6_K -> sixes(packed, from, to, first);
                case MXFP4 -> {
                    float scale = Mxfp4.scale(packed[from]);
                    for (int i = 0; i < 16; i++) {
                        int pair = packed[from + 1 + i];
                        to[first + i] = Mxfp4.number(pair) * scale;
                        to[first + 16 + i] = Mxfp4.number(pair >> 4) * scale;
                    }
                }
            }
        }
    }

    /** The low fours of 16 bytes, then the high ones: {@code scale * (q - zero) + least}, where -0 leaves the sign of 0. */
    private static void fours(byte[] packed, int from, float scale, int zero, float least, float[] to, int first) {
        for (int i = 0; i < 16; i++) {
            int pair = packed[from + i];
            to[first + i] = scale * ((pair & 15) - zero) + least;
            to[first + 16 + i] = scale * ((pair >> 4 & 15) - zero) + least;
        }
    }

    /** Unpacks as {@link #fours} does, with the fifth bit of each of 32 numbers in front of them. */
    private static void fives(byte[] packed, int from, float scale, int zero, float least, float[] to, int first) {
        int fifths = halves(packed, from + 2) << 16 | halves(packed, from);
        for (int i = 0; i < 16; i++) {
            int pair = packed[from + 4 + i];
            to[first + i] = scale * ((pair & 15 | (fifths >> i & 1) << 4) - zero) + least;
            to[first + 16 + i] = scale * ((pair >> 4 & 15 | (fifths >> 16 + i & 1) << 4) - zero) + least;
        }
    }

    /**
     * Eight parts of 32, each with a scale and a least value of 6 bits, that share two of fp16.
     *
     * @param fours where their fours are, the low ones of 32 bytes for a part, the high ones for the next
     * @param fifths where their fifth bits are, in 32 bytes the bit of a part's number; negative: there are none
     */
    private static void partsOf32(byte[] packed, int from, int fours, int fifths, float[] to, int first) {
        float scale = half(packed, from);
        float least = half(packed, from + 2);
        int sixes = from + 4;
        for (int part = 0; part < 8; part++) {
            int scaleOf;
            int leastOf;
            if (part < 4) {
                scaleOf = packed[sixes + part] & 63;
                leastOf = packed[sixes + 4 + part] & 63;
            } else {
                int low = packed[sixes + 4 + part];
                scaleOf = low & 15 | (packed[sixes + part - 4] & 0xc0) >> 2;
                leastOf = low >> 4 & 15 | (packed[sixes + part] & 0xc0) >> 2;
            }
            float partScale = scale * scaleOf;
            float partLeast = least * leastOf;
            int shift = part % 2 * 4;
            for (int i = 0; i < 32; i++) {
                int value = packed[fours + part / 2 * 32 + i] >> shift & 15;
                if (fifths >= 0) {
                    value |= (packed[fifths + i] >> part & 1) << 4;
                }
                to[first + part * 32 + i] = partScale * value - partLeast;
            }
        }
    }

    /** 128 bytes of low fours, 64 of the two bits above, 16 scales of 16 elements each, one of all. */
    private static void sixes(byte[] packed, int from, float[] to, int first) {
        float scale = half(packed, from + 208);
        for (int part = 0; part < 8; part++) {
            int low = from + part / 4 * 64 + part % 2 * 32;
            int high = from + 128 + part / 4 * 32;
            int lowShift = part % 4 / 2 * 4;
            int highShift = part % 4 * 2;
            for (int i = 0; i < 32; i++) {
                int value = packed[low + i] >> lowShift & 15 | (packed[high + i] >> highShift & 3) << 4;
                float partScale = scale * packed[from + 192 + part * 2 + i / 16];
                to[first + part * 32 + i] = partScale * (value - 32);
            }
        }
    }

    private static float half(byte[] packed, int at) {
        return Float.float16ToFloat((short) halves(packed, at));
    }

    private static int halves(byte[] packed, int at) {
        return packed[at] & 0xff | (packed[at + 1] & 0xff) << 8;
    }
}
