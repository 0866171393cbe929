package baton.cuda.sim;

import static baton.cuda.sim.LaneInstruction.PREDICATE;

import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;

/**
 * Arithmetic of numbers, as IEEE 754 has it. A result that is no number is {@link #NAN}, as on the device. Instructions that
 * approximate are rounded correctly. Sums and products without {@code .rn} are not taken: NVIDIA's assembler may make one {@code fma} of two, so
 * their bits would not be those of the device.
 */
final class FloatInstructions {
    static final int NAN = 0x7fff_ffff;
    private static final long NAN64 = 0x7fff_ffff_ffff_ffffL;
    private static final int SIGN = 0x8000_0000;

    private FloatInstructions() {}

    @FunctionalInterface
    private interface Function {
        float apply(float a, float b, float c);
    }

    @FunctionalInterface
    private interface Function64 {
        double apply(double a, double b, double c);
    }

    static void addTo(LaneInstruction.Table table) {
        add(table, "add.rn", 2, (a, b, _) -> a + b);
        add(table, "sub.rn", 2, (a, b, _) -> a - b);
        add(table, "mul.rn", 2, (a, b, _) -> a * b);
        add(table, "fma.rn", 3, Math::fma);
        add(table, "min", 2, (a, b, _) -> Float.isNaN(a) ? b : Float.isNaN(b) ? a : Math.min(a, b));
        add(table, "max", 2, (a, b, _) -> Float.isNaN(a) ? b : Float.isNaN(b) ? a : Math.max(a, b));
        add(table, "div.rn", 2, (a, b, _) -> a / b);
        add(table, "div.approx div.full", 2, (a, b, _) -> a / b);
        add(table, "sqrt.rn sqrt.approx", 1, (a, _, _) -> (float) Math.sqrt(a));
        add(table, "rcp.rn rcp.approx", 1, (a, _, _) -> 1 / a);
        add(table, "rsqrt.approx", 1, (a, _, _) -> (float) (1 / Math.sqrt(a)));
        add(table, "ex2.approx", 1, rounded(a -> Math.pow(2, a)));
        add(table, "lg2.approx", 1, rounded(a -> Math.log(a) / Math.log(2)));
        add(table, "sin.approx", 1, rounded(Math::sin));
        add(table, "cos.approx", 1, rounded(Math::cos));
        table.add("tanh.approx.f32", "f32", "f32", bits(rounded(Math::tanh)));
        table.words("neg", "f32", 1, (a, _, _) -> a ^ SIGN);
        table.words("abs", "f32", 1, (a, _, _) -> a & ~SIGN);
        add64(table, "add.rn", 2, (a, b, _) -> a + b);
        add64(table, "sub.rn", 2, (a, b, _) -> a - b);
        add64(table, "mul.rn", 2, (a, b, _) -> a * b);
        add64(table, "fma.rn", 3, Math::fma);
        add64(table, "min", 2, number(Math::min));
        add64(table, "max", 2, number(Math::max));
        add64(table, "div.rn", 2, (a, b, _) -> a / b);
        add64(table, "sqrt.rn", 1, (a, _, _) -> Math.sqrt(a));
        add64(table, "rcp.rn", 1, (a, _, _) -> 1 / a);
        table.wide("neg", "f64", 1, (a, _, _) -> a ^ Long.MIN_VALUE);
        table.wide("abs", "f64", 1, (a, _, _) -> a & Long.MAX_VALUE);
        comparisons(table);
    }

    private static Function rounded(DoubleUnaryOperator function) {
        return (a, _, _) -> (float) function.applyAsDouble(a);
    }

    private static Function64 number(DoubleBinaryOperator function) {
        return (a, b, _) -> Double.isNaN(a) ? b : Double.isNaN(b) ? a : function.applyAsDouble(a, b);
    }

    private static void add(LaneInstruction.Table table, String names, int operands, Function function) {
        for (String name : names.split(" ")) {
            table.words(name, "f32", operands, bits(function));
            table.words(
                    name + ".ftz",
                    "f32",
                    operands,
                    bits((a, b, c) -> flushed(function.apply(flushed(a), flushed(b), flushed(c)))));
        }
    }

    private static void add64(LaneInstruction.Table table, String names, int operands, Function64 function) {
        for (String name : names.split(" ")) {
            table.wide(name, "f64", operands, (a, b, c) -> {
                double result = function.apply(
                        Double.longBitsToDouble(a), Double.longBitsToDouble(b), Double.longBitsToDouble(c));
                return Double.isNaN(result) ? NAN64 : Double.doubleToRawLongBits(result);
            });
        }
    }

    private static LaneFunction.Words bits(Function function) {
        return (a, b, c) ->
                bits(function.apply(Float.intBitsToFloat(a), Float.intBitsToFloat(b), Float.intBitsToFloat(c)));
    }

    static int bits(float value) {
        return Float.isNaN(value) ? NAN : Float.floatToRawIntBits(value);
    }

    private static float flushed(float value) {
        return Math.abs(value) < Float.MIN_NORMAL ? Math.copySign(0, value) : value;
    }

    private static void comparisons(LaneInstruction.Table table) {
        IntegerInstructions.COMPARISONS.forEach((name, holds) -> {
            boolean less = holds[0];
            boolean equal = holds[1];
            boolean greater = holds[2];
            comparison(table, name, less, equal, greater, false);
            comparison(table, name + "u", less, equal, greater, true);
        });
        comparison(table, "num", true, true, true, false);
        comparison(table, "nan", false, false, false, true);
    }

    private static void comparison(
            LaneInstruction.Table table, String name, boolean less, boolean equal, boolean greater, boolean unordered) {
        table.add("setp." + name + ".f64", PREDICATE, "f64 f64", (LaneFunction.Wide) (x, y, _) -> {
            double a = Double.longBitsToDouble(x);
            double b = Double.longBitsToDouble(y);
            return holds(a, b, less, equal, greater, unordered);
        });
        table.add("setp." + name + ".f32", PREDICATE, "f32 f32", (LaneFunction.Words)
                (x, y, _) -> holds(Float.intBitsToFloat(x), Float.intBitsToFloat(y), less, equal, greater, unordered));
    }

    private static int holds(double a, double b, boolean less, boolean equal, boolean greater, boolean unordered) {
        return less && a < b || equal && a == b || greater && a > b || unordered && (Double.isNaN(a) || Double.isNaN(b))
                ? 1
                : 0;
    }
}
