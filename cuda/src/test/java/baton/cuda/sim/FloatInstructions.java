package baton.cuda.sim;

import static baton.cuda.sim.LaneInstruction.PREDICATE;

/**
 * Arithmetic of numbers, as IEEE 754 has it. A result that is no number is {@link #NAN}, as on the device. Instructions that
 * approximate are rounded correctly. Sums and products without {@code .rn} are not taken: NVIDIA's assembler may make one {@code fma} of two, so
 * their bits would not be those of the device.
 */
final class FloatInstructions {
    static final int NAN = 0x7fff_ffff;
    private static final int SIGN = 0x8000_0000;

    private FloatInstructions() {}

    @FunctionalInterface
    private interface Function {
        float apply(float a, float b, float c);
    }

    static void addTo(LaneInstruction.Table table) {
        add(table, "add.rn", 2, (a, b, _) -> a + b);
        add(table, "sub.rn", 2, (a, b, _) -> a - b);
        add(table, "mul.rn", 2, (a, b, _) -> a * b);
        add(table, "fma.rn", 3, Math::fma);
        add(table, "min", 2, (a, b, _) -> Float.isNaN(a) ? b : Float.isNaN(b) ? a : Math.min(a, b));
        add(table, "max", 2, (a, b, _) -> Float.isNaN(a) ? b : Float.isNaN(b) ? a : Math.max(a, b));
        add(table, "div.rn", 2, (a, b, _) -> a / b);
        add(table, "sqrt.rn", 1, (a, _, _) -> (float) Math.sqrt(a));
        add(table, "ex2.approx", 1, (a, _, _) -> (float) Math.pow(2, a));
        table.words("neg", "f32", 1, (a, _, _) -> a ^ SIGN);
        table.words("abs", "f32", 1, (a, _, _) -> a & ~SIGN);
        IntegerInstructions.COMPARISONS.forEach(
                (name, holds) -> comparison(table, name, holds[0], holds[1], holds[2], false));
        comparison(table, "nan", false, false, false, true);
    }

    private static void add(LaneInstruction.Table table, String name, int operands, Function function) {
        table.words(
                name,
                "f32",
                operands,
                (a, b, c) -> bits(
                        function.apply(Float.intBitsToFloat(a), Float.intBitsToFloat(b), Float.intBitsToFloat(c))));
    }

    static int bits(float value) {
        return Float.isNaN(value) ? NAN : Float.floatToRawIntBits(value);
    }

    private static void comparison(
            LaneInstruction.Table table, String name, boolean less, boolean equal, boolean greater, boolean unordered) {
        table.add("setp." + name + ".f32", PREDICATE, "f32 f32", (LaneFunction.Words)
                (x, y, _) -> holds(Float.intBitsToFloat(x), Float.intBitsToFloat(y), less, equal, greater, unordered));
    }

    private static int holds(float a, float b, boolean less, boolean equal, boolean greater, boolean unordered) {
        return less && a < b || equal && a == b || greater && a > b || unordered && (Float.isNaN(a) || Float.isNaN(b))
                ? 1
                : 0;
    }
}
