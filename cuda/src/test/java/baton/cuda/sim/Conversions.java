package baton.cuda.sim;

/** The instruction {@code cvt}, between integers, numbers and narrow numbers. Registers of 16 bits are the low halves of words, with anything above. */
final class Conversions {
    private static final int HALF = 0xffff;
    private static final int NAN16 = 0x7fff;
    private static final int INFINITY = 0x7f80_0000;

    private Conversions() {}

    static void addTo(LaneInstruction.Table table) {
        table.add("cvt.u64.u32", "u64", "u32", (LaneFunction.Wide) (a, _, _) -> a & 0xffff_ffffL);
        table.add("cvt.u32.u64", "u32", "u64", (LaneFunction.Wide) (a, _, _) -> a);
        words(table, "cvt.u32.u16", "u32", "u16", (a, _, _) -> a & HALF);
        words(table, "cvt.u16.u32", "u16", "u32", (a, _, _) -> a & HALF);
        words(
                table,
                "cvt.rn.f32.u32",
                "f32",
                "u32",
                (a, _, _) -> Float.floatToRawIntBits((float) Integer.toUnsignedLong(a)));
        words(table, "cvt.rni.u32.f32", "u32", "f32", (a, _, _) ->
                (int) Math.clamp((long) Math.rint(Float.intBitsToFloat(a)), 0, 0xffff_ffffL));
        words(table, "cvt.f32.f16", "f32", "f16", (a, _, _) -> FloatInstructions.bits(Float.float16ToFloat((short) a)));
        words(table, "cvt.rn.f16.f32", "f16", "f32", (a, _, _) -> toF16(a));
        words(table, "cvt.rn.bf16.f32", "bf16", "f32", (a, _, _) -> toBf16(a));
        words(table, "cvt.rn.f16x2.f32", "f16x2", "f32 f32", (a, b, _) -> toF16(a) << Short.SIZE | toF16(b));
        words(table, "cvt.rn.bf16x2.f32", "bf16x2", "f32 f32", (a, b, _) -> toBf16(a) << Short.SIZE | toBf16(b));
    }

    private static void words(
            LaneInstruction.Table table, String opcode, String to, String from, LaneFunction.Words function) {
        table.add(opcode, to, from, function);
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
}
