package baton.cuda.sim;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.function.DoubleUnaryOperator;
import java.util.function.IntToDoubleFunction;

/** Results of instructions by arithmetic of any size. */
final class ReferenceArithmetic {
    private static final long NAN = 0x7fff_ffffL;

    private ReferenceArithmetic() {}

    /** Whether an instruction may have the result; those that approximate may be wrong in the last place. */
    static boolean isResult(String opcode, LaneInstruction instruction, long got, long a, long b, long c) {
        if (opcode.contains(".approx.")
                && !opcode.startsWith("div")
                && !opcode.startsWith("rcp")
                && !opcode.startsWith("sqrt")) {
            float expected = Float.intBitsToFloat((int) approximate(opcode, a));
            float actual = Float.intBitsToFloat((int) got);
            return expected == actual
                    || Float.isNaN(expected) && got == NAN
                    || Math.abs((double) expected - actual) <= Math.ulp(expected);
        }
        return got == expected(opcode, instruction, a, b, c);
    }

    private static long approximate(String opcode, long a) {
        DoubleUnaryOperator function = switch (opcode.substring(0, opcode.indexOf('.'))) {
            case "ex2" -> x -> StrictMath.pow(2, x);
            case "lg2" -> x -> StrictMath.log10(x) / StrictMath.log10(2);
            case "sin" -> StrictMath::sin;
            case "cos" -> StrictMath::cos;
            case "tanh" -> StrictMath::tanh;
            case "rsqrt" -> x -> 1 / Math.sqrt(x);
            default -> throw new IllegalArgumentException(opcode);
        };
        boolean flushes = opcode.contains(".ftz.");
        double x = flushed(Float.intBitsToFloat((int) a), flushes);
        return bits(flushed((float) function.applyAsDouble(x), flushes));
    }

    private static long expected(String opcode, LaneInstruction instruction, long a, long b, long c) {
        String[] parts = opcode.split("\\.");
        String type = parts[parts.length - 1];
        return switch (parts[0]) {
            case "setp" -> compare(parts[1], type, a, b) ? 1 : 0;
            case "cvt" -> converted(parts, a, b);
            case "prmt" -> permuted(a, b, c);
            case "brev" ->
                Long.parseLong(
                        new StringBuilder("%32s"
                                        .formatted(Long.toBinaryString(a & 0xffff_ffffL))
                                        .replace(' ', '0'))
                                .reverse()
                                .toString(),
                        2);
            case "popc" -> value("u" + LaneInstruction.bits(type), a).bitCount();
            case "clz" ->
                LaneInstruction.bits(type)
                        - value("u" + LaneInstruction.bits(type), a).bitLength();
            case "bfe" -> field(type, a, (int) (b & 0xff), (int) (c & 0xff));
            default ->
                switch (type) {
                    case "f32" -> ofFloats(opcode, (int) a, (int) b, (int) c) & 0xffff_ffffL;
                    case "f64" -> ofDoubles(parts[0], a, b, c);
                    default -> ofIntegers(parts, type, instruction.result(), a, b, c);
                };
        };
    }

    private static BigInteger value(String type, long bits) {
        int size = LaneInstruction.bits(type);
        BigInteger low =
                BigInteger.valueOf(bits).and(BigInteger.ONE.shiftLeft(size).subtract(BigInteger.ONE));
        return type.startsWith("s") && low.testBit(size - 1) ? low.subtract(BigInteger.ONE.shiftLeft(size)) : low;
    }

    private static long low(String type, BigInteger value) {
        int size = LaneInstruction.bits(type);
        return value.and(BigInteger.ONE.shiftLeft(size).subtract(BigInteger.ONE))
                .longValue();
    }

    private static long ofIntegers(String[] parts, String type, String result, long x, long y, long z) {
        BigInteger a = value(type, x);
        BigInteger b = value(type, y);
        int size = LaneInstruction.bits(type);
        int shift = value("u32", y).min(BigInteger.valueOf(100)).intValue();
        BigInteger c = value(result, z);
        BigInteger product = a.multiply(b);
        BigInteger all = switch (parts[0]) {
            case "add" -> a.add(b);
            case "sub" -> a.subtract(b);
            case "mul" -> parts[1].equals("hi") ? product.shiftRight(size) : product;
            case "mad" -> (parts[1].equals("hi") ? product.shiftRight(size) : product).add(c);
            case "div" -> b.signum() == 0 ? BigInteger.ONE.negate() : a.divide(b);
            case "rem" -> b.signum() == 0 ? a : a.subtract(a.divide(b).multiply(b));
            case "min" -> a.min(b);
            case "max" -> a.max(b);
            case "neg" -> a.negate();
            case "abs" -> a.abs();
            case "and" -> a.and(b);
            case "or" -> a.or(b);
            case "xor" -> a.xor(b);
            case "not" -> a.not();
            case "shl" -> a.shiftLeft(shift);
            case "shr" -> a.shiftRight(shift);
            default -> throw new IllegalArgumentException(String.join(".", parts));
        };
        return low(result, all);
    }

    private static boolean compare(String comparison, String type, long x, long y) {
        int order;
        if (type.startsWith("f")) {
            double a = type.equals("f32") ? Float.intBitsToFloat((int) x) : Double.longBitsToDouble(x);
            double b = type.equals("f32") ? Float.intBitsToFloat((int) y) : Double.longBitsToDouble(y);
            if (Double.isNaN(a) || Double.isNaN(b)) {
                return comparison.equals("nan") || comparison.endsWith("u") && comparison.length() == 3;
            }
            order = a < b ? -1 : a > b ? 1 : 0;
        } else {
            order = value(type, x).compareTo(value(type, y));
        }
        return switch (comparison) {
            case "lt", "ltu" -> order < 0;
            case "le", "leu" -> order <= 0;
            case "gt", "gtu" -> order > 0;
            case "ge", "geu" -> order >= 0;
            case "eq", "equ" -> order == 0;
            case "ne", "neu" -> order != 0;
            case "num" -> true;
            default -> false;
        };
    }

    private static long permuted(long a, long b, long selection) {
        byte[] bytes = new byte[8];
        for (int i = 0; i < 4; i++) {
            bytes[i] = (byte) (a >> 8 * i);
            bytes[i + 4] = (byte) (b >> 8 * i);
        }
        long result = 0;
        for (int i = 0; i < 4; i++) {
            int nibble = (int) (selection >> 4 * i) & 15;
            int value = bytes[nibble % 8];
            result |= (long) ((nibble < 8 ? value : value < 0 ? -1 : 0) & 0xff) << 8 * i;
        }
        return result;
    }

    private static long field(String type, long a, int first, int length) {
        BigInteger extended = value("s32", a);
        boolean negative = type.equals("s32") && length > 0 && extended.testBit(Math.min(first + length - 1, 31));
        BigInteger field = BigInteger.ZERO;
        for (int i = 0; i < 32; i++) {
            boolean bit = i < length && first + i < 32 ? extended.testBit(first + i) : negative;
            field = bit ? field.setBit(i) : field;
        }
        return field.longValue();
    }

    private static float flushed(float value, boolean flushes) {
        return flushes && Math.abs(value) < Float.MIN_NORMAL ? Math.copySign(0, value) : value;
    }

    private static long bits(float value) {
        return Float.isNaN(value) ? NAN : Float.floatToRawIntBits(value) & 0xffff_ffffL;
    }

    /** Sums, products and quotients of fp32 in fp64 are so exact that rounding them again changes nothing. */
    private static long ofFloats(String opcode, int x, int y, int z) {
        boolean flushes = opcode.contains(".ftz.");
        double a = flushed(Float.intBitsToFloat(x), flushes);
        double b = flushed(Float.intBitsToFloat(y), flushes);
        float c = flushed(Float.intBitsToFloat(z), flushes);
        return switch (opcode.substring(0, opcode.indexOf('.'))) {
            case "neg" -> x ^ 0x8000_0000L;
            case "abs" -> x & 0x7fff_ffffL;
            case "fma" -> {
                boolean exact = Double.isFinite(a) && Double.isFinite(b) && Float.isFinite(c) && a * b + c != 0;
                float sum = exact
                        ? new BigDecimal(a)
                                .multiply(new BigDecimal(b))
                                .add(new BigDecimal(c))
                                .floatValue()
                        : (float) (a * b + c);
                yield bits(flushed(sum, flushes));
            }
            case String name -> bits(flushed((float) of(name, a, b), flushes));
        };
    }

    private static double of(String name, double a, double b) {
        return switch (name) {
            case "add" -> a + b;
            case "sub" -> a - b;
            case "mul" -> a * b;
            case "div" -> a / b;
            case "min" -> Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.min(a, b);
            case "max" -> Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.max(a, b);
            case "sqrt" -> Math.sqrt(a);
            case "rcp" -> 1 / a;
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static long ofDoubles(String name, long x, long y, long z) {
        double a = Double.longBitsToDouble(x);
        double b = Double.longBitsToDouble(y);
        return switch (name) {
            case "neg" -> x ^ Long.MIN_VALUE;
            case "abs" -> x & Long.MAX_VALUE;
            default -> {
                double result = name.equals("fma") ? StrictMath.fma(a, b, Double.longBitsToDouble(z)) : of(name, a, b);
                yield Double.isNaN(result) ? Long.MAX_VALUE : Double.doubleToRawLongBits(result);
            }
        };
    }

    private static long converted(String[] parts, long a, long b) {
        String from = parts[parts.length - 1];
        String to = parts[parts.length - 2];
        boolean fromInteger = from.matches("[us]\\d+");
        if (to.matches("[us]\\d+")) {
            int register = Math.max(16, LaneInstruction.bits(to));
            return low(
                    "u" + register,
                    fromInteger ? value(to, value(from, a).longValue()) : integer(parts[1], to, number(from, a)));
        }
        if (to.endsWith("x2")) {
            String half = to.substring(0, to.length() - 2);
            return narrow(half, "rn", a) << 16 | narrow(half, "rn", b);
        }
        return switch (to) {
            case "bf16", "f16" -> narrow(to, parts[1], a);
            case "tf32" -> Float.isNaN(Float.intBitsToFloat((int) a)) ? NAN : a + 0x1000 & 0xffff_e000L;
            case "f64" ->
                fromInteger
                        ? Double.doubleToRawLongBits(new BigDecimal(value(from, a)).doubleValue())
                        : Double.doubleToRawLongBits(Float.intBitsToFloat((int) a));
            default ->
                fromInteger
                        ? bits(new BigDecimal(value(from, a)).floatValue())
                        : parts[1].endsWith("i")
                                ? rounded(parts[1], Float.intBitsToFloat((int) a))
                                : from.equals("bf16") ? (a & 0xffff) << 16 : bits((float) number(from, a));
        };
    }

    private static double number(String type, long bits) {
        return switch (type) {
            case "f32" -> Float.intBitsToFloat((int) bits);
            case "f16" -> half((int) bits & 0xffff);
            default -> Double.longBitsToDouble(bits);
        };
    }

    private static double half(int bits) {
        int exponent = bits >> 10 & 31;
        int fraction = bits & 1023;
        double magnitude = exponent == 31
                ? fraction == 0 ? Double.POSITIVE_INFINITY : Double.NaN
                : exponent == 0 ? fraction * 0x1p-24 : (1024 + fraction) * Math.pow(2, exponent - 25);
        return bits >> 15 == 0 ? magnitude : -magnitude;
    }

    private static RoundingMode mode(String rounding) {
        return switch (rounding) {
            case "rni" -> RoundingMode.HALF_EVEN;
            case "rzi" -> RoundingMode.DOWN;
            case "rmi" -> RoundingMode.FLOOR;
            default -> RoundingMode.CEILING;
        };
    }

    private static BigInteger integer(String rounding, String type, double value) {
        int size = LaneInstruction.bits(type);
        boolean signed = type.startsWith("s");
        BigInteger least = signed ? BigInteger.ONE.shiftLeft(size - 1).negate() : BigInteger.ZERO;
        BigInteger most = BigInteger.ONE.shiftLeft(signed ? size - 1 : size).subtract(BigInteger.ONE);
        if (!Double.isFinite(value)) {
            return Double.isNaN(value) ? BigInteger.ZERO : value < 0 ? least : most;
        }
        return new BigDecimal(value)
                .setScale(0, mode(rounding))
                .toBigInteger()
                .max(least)
                .min(most);
    }

    private static long rounded(String rounding, float value) {
        if (!Float.isFinite(value)) {
            return bits(value);
        }
        float whole = new BigDecimal(value).setScale(0, mode(rounding)).floatValue();
        return bits(Math.copySign(whole, value));
    }

    /** The narrow number that is nearest, of two that are equally near the even one; or the next one towards zero. */
    private static long narrow(String type, String rounding, long bits) {
        float value = Float.intBitsToFloat((int) bits);
        if (Float.isNaN(value)) {
            return 0x7fff;
        }
        boolean half = type.equals("f16");
        int infinity = half ? 0x7c00 : 0x7f80;
        IntToDoubleFunction decoded = code ->
                code == infinity ? half ? 0x1p16 : 0x1p128 : half ? half(code) : Float.intBitsToFloat(code << 16);
        double magnitude = Math.abs(value);
        int low = 0;
        for (int step = 1 << 14; step > 0; step >>= 1) {
            if (low + step <= infinity && decoded.applyAsDouble(low + step) <= magnitude) {
                low += step;
            }
        }
        if (low < infinity && rounding.equals("rn")) {
            double below = magnitude - decoded.applyAsDouble(low);
            double above = decoded.applyAsDouble(low + 1) - magnitude;
            low += above < below || above == below && (low & 1) == 1 ? 1 : 0;
        }
        return low | (Float.floatToRawIntBits(value) < 0 ? 0x8000 : 0);
    }
}
