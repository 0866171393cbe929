package baton.cuda.sim;

import java.math.BigDecimal;
import java.util.Map;
import java.util.function.DoubleToLongFunction;
import java.util.function.DoubleUnaryOperator;
import java.util.function.LongUnaryOperator;

/** The instruction {@code cvt}, between integers, numbers and narrow numbers. */
final class Conversions {
    private static final int HALF = 0xffff;
    private static final int NAN16 = 0x7fff;
    private static final int INFINITY = 0x7f80_0000;

    private static final String[] INTEGERS = {"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"};
    private static final Map<String, DoubleUnaryOperator> ROUNDINGS = Map.of(
            "rni", Math::rint,
            "rzi", a -> a < 0 ? Math.ceil(a) : Math.floor(a),
            "rmi", Math::floor,
            "rpi", Math::ceil);

    private Conversions() {}

    static void addTo(LaneInstruction.Table table) {
        integers(table);
        toIntegers(table);
        numbers(table);
    }

    private static void integers(LaneInstruction.Table table) {
        for (String from : INTEGERS) {
            LongUnaryOperator source = extension(from);
            for (String to : INTEGERS) {
                LongUnaryOperator target = extension(to);
                table.add(
                        "cvt." + to + "." + from,
                        to,
                        from,
                        wide((a, _, _) -> target.applyAsLong(source.applyAsLong(a))));
            }
            boolean unsigned = from.equals("u64");
            table.add(
                    "cvt.rn.f32." + from,
                    "f32",
                    from,
                    wide((a, _, _) -> Float.floatToRawIntBits(
                            unsigned && a < 0 ? unsigned(a).floatValue() : source.applyAsLong(a))));
            table.add(
                    "cvt.rn.f64." + from,
                    "f64",
                    from,
                    wide((a, _, _) -> Double.doubleToRawLongBits(
                            unsigned && a < 0 ? unsigned(a).doubleValue() : source.applyAsLong(a))));
        }
    }

    private static BigDecimal unsigned(long a) {
        return new BigDecimal(Long.toUnsignedString(a));
    }

    /** Takes the bits of a type and extends them to 64. */
    private static LongUnaryOperator extension(String type) {
        return switch (type) {
            case "u8" -> value -> value & 0xff;
            case "s8" -> value -> (byte) value;
            case "u16" -> value -> value & HALF;
            case "s16" -> value -> (short) value;
            case "u32" -> value -> value & 0xffff_ffffL;
            case "s32" -> value -> (int) value;
            default -> value -> value;
        };
    }

    private static void toIntegers(LaneInstruction.Table table) {
        ROUNDINGS.forEach((name, rounding) -> {
            for (String to : new String[] {"u32", "s32", "u64", "s64"}) {
                DoubleToLongFunction saturation = saturation(to);
                String head = "cvt." + name + "." + to;
                table.add(
                        head + ".f32",
                        to,
                        "f32",
                        wide((a, _, _) ->
                                saturation.applyAsLong(rounding.applyAsDouble(Float.intBitsToFloat((int) a)))));
                table.add(
                        head + ".f64",
                        to,
                        "f64",
                        wide((a, _, _) -> saturation.applyAsLong(rounding.applyAsDouble(Double.longBitsToDouble(a)))));
            }
            table.words(
                    "cvt." + name + ".f32",
                    "f32",
                    1,
                    (a, _, _) -> FloatInstructions.bits((float) rounding.applyAsDouble(Float.intBitsToFloat(a))));
        });
    }

    /** The nearest number of a type; 0 for NaN. */
    private static DoubleToLongFunction saturation(String type) {
        return switch (type) {
            case "u32" -> value -> (int) Math.clamp((long) value, 0, 0xffff_ffffL);
            case "s32" -> value -> (int) value;
            case "u64" ->
                value -> value <= 0 || Double.isNaN(value)
                        ? 0
                        : value >= 0x1p64
                                ? -1
                                : value >= 0x1p63 ? (long) (value - 0x1p63) ^ Long.MIN_VALUE : (long) value;
            default -> value -> (long) value;
        };
    }

    private static void numbers(LaneInstruction.Table table) {
        table.add(
                "cvt.f32.f16",
                "f32",
                "f16",
                words((a, _, _) -> FloatInstructions.bits(Float.float16ToFloat((short) a))));
        table.add("cvt.f32.bf16", "f32", "bf16", words((a, _, _) -> a << Short.SIZE));
        table.add(
                "cvt.f64.f32",
                "f64",
                "f32",
                wide((a, _, _) -> Double.doubleToRawLongBits(Float.intBitsToFloat((int) a))));
        table.add(
                "cvt.rn.f32.f64",
                "f32",
                "f64",
                wide((a, _, _) -> FloatInstructions.bits((float) Double.longBitsToDouble(a))));
        table.add("cvt.rn.f16.f32", "f16", "f32", words((a, _, _) -> toF16(a)));
        table.add("cvt.rn.bf16.f32", "bf16", "f32", words((a, _, _) -> toBf16(a)));
        table.add("cvt.rz.bf16.f32", "bf16", "f32", words((a, _, _) -> isNaN(a) ? NAN16 : a >>> Short.SIZE));
        table.add("cvt.rn.f16x2.f32", "f16x2", "f32 f32", words((a, b, _) -> toF16(a) << Short.SIZE | toF16(b)));
        table.add("cvt.rn.bf16x2.f32", "bf16x2", "f32 f32", words((a, b, _) -> toBf16(a) << Short.SIZE | toBf16(b)));
        table.add(
                "cvt.rna.tf32.f32",
                "tf32",
                "f32",
                words((a, _, _) -> isNaN(a) ? FloatInstructions.NAN : a + 0x1000 & ~0x1fff));
    }

    private static boolean isNaN(int bits) {
        return (bits & 0x7fff_ffff) > INFINITY;
    }

    private static int toF16(int bits) {
        return isNaN(bits) ? NAN16 : Float.floatToFloat16(Float.intBitsToFloat(bits)) & HALF;
    }

    private static int toBf16(int bits) {
        return isNaN(bits) ? NAN16 : bits + 0x7fff + (bits >>> Short.SIZE & 1) >>> Short.SIZE;
    }

    private static LaneFunction.Words words(LaneFunction.Words function) {
        return function;
    }

    private static LaneFunction.Wide wide(LaneFunction.Wide function) {
        return function;
    }
}
