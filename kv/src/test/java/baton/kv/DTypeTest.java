package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.junit.jupiter.api.Test;

/**
 * Conversions are torch's, to the bit. The digests are of torch's results, little-endian, with one NaN of each type: {@code bits.view(type).float()}
 * of all bits, and {@code numbers.clamp(-448, 448).to(torch.float8_e4m3fn)}, which is how vLLM fills its caches, and {@code numbers.to(torch.float16)}.
 */
class DTypeTest {
    private static final int SHORTS = 1 << 16;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfShort SHORT =
            ValueLayout.JAVA_SHORT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    @Test
    void allBitsOfAType() throws Exception {
        assertThat(digest(decoded(DType.F16, SHORTS)))
                .isEqualTo("385ff5fe69182797cda5f1827e20cf423f4416bc9246f27d0eec27cac9039259");
        assertThat(digest(decoded(DType.F8_E4M3, 256)))
                .isEqualTo("422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2");
    }

    @Test
    void allHalvesToE4m3() throws Exception {
        assertThat(digest(encoded(DType.F16, DType.F8_E4M3)))
                .isEqualTo("0212e2599adcd3301d3bad890a053b8b41e514049b9988db67e77c2e21e464ce");
    }

    @Test
    void allBf16ToE4m3AndHalves() throws Exception {
        assertThat(digest(encoded(DType.BF16, DType.F8_E4M3)))
                .isEqualTo("2f8096b3b00699a86e3e44c61fc0287c5111ab4b4e3d1ad604f6f3a5b3eca0db");
        assertThat(digest(encoded(DType.BF16, DType.F16)))
                .isEqualTo("081663db890db93c3f0f03bbac4450a56ff468dbf706005a749fa4d33e9b3971");
    }

    /** All numbers of a type as fp32. */
    private static MemorySegment decoded(DType type, int count) {
        MemorySegment bits = MemorySegment.ofArray(new byte[count * type.bytes()]);
        MemorySegment floats = MemorySegment.ofArray(new byte[count * Float.BYTES]);
        for (int i = 0; i < count; i++) {
            if (type.bytes() == 1) {
                bits.set(ValueLayout.JAVA_BYTE, i, (byte) i);
            } else {
                bits.set(SHORT, 2L * i, (short) i);
            }
            floats.set(INT, 4L * i, Float.floatToIntBits(type.get(bits, (long) i * type.bytes())));
        }
        return floats;
    }

    private static MemorySegment encoded(DType from, DType to) {
        MemorySegment floats = decoded(from, SHORTS);
        MemorySegment encoded = MemorySegment.ofArray(new byte[SHORTS * to.bytes()]);
        for (int i = 0; i < SHORTS; i++) {
            to.set(encoded, (long) i * to.bytes(), Float.intBitsToFloat(floats.get(INT, 4L * i)));
        }
        return encoded;
    }

    private static String digest(MemorySegment memory) throws Exception {
        return HexFormat.of()
                .formatHex(MessageDigest.getInstance("SHA-256").digest(memory.toArray(ValueLayout.JAVA_BYTE)));
    }
}
