package baton.cuda.sim;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.function.IntToDoubleFunction;

/** Results of instructions by arithmetic of any size. */
final class ReferenceArithmetic {
    private static final long NAN = 0x7fff_ffffL;

    private ReferenceArithmetic() {}

    /** Whether an instruction may have the result; one that approximates may be wrong in the last place. */
    static boolean isResult(String opcode, LaneInstruction instruction, long got, long a, long b, long c) {
        if (opcode.equals("ex2.approx.f32")) {
            float expected = (float) StrictMath.pow(2, Float.intBitsToFloat((int) a));
            float actual = Float.intBitsToFloat((int) got);
            return expected == actual
                    || Float.isNaN(expected) && got == NAN
                    || Math.abs((double) expected - actual) <= Math.ulp(expected);
        }
        return got == expected(opcode, instruction, a, b, c);
    }

    private static long expected(String opcode, LaneInstruction instruction, long a, long b, long c) {
        String[] parts = opcode.split("\\.");
        String type = parts[parts.length - 1];
        return switch (parts[0]) {
            case "setp" -> compare(parts[1], type, a, b) ? 1 : 0;
            case "cvt" -> converted(parts, a, b);
            default ->
                type.equals("f32")
                        ? ofFloats(parts[0], (int) a, (int) b, (int) c) & 0xffff_ffffL
                        : ofIntegers(parts, type, instruction.result(), a, b, c);
        };
    }

    private static BigInteger value(String type, long bits) {
        return BigInteger.valueOf(bits)
                .and(BigInteger.ONE.shiftLeft(LaneInstruction.bits(type)).subtract(BigInteger.ONE));
    }

    private static long ofIntegers(String[] parts, String type, String result, long x, long y, long z) {
        BigInteger a = value(type, x);
        BigInteger b = value(type, y);
        int shift = value("u32", y).min(BigInteger.valueOf(100)).intValue();
        BigInteger product = a.multiply(b);
        BigInteger all = switch (parts[0]) {
            case "add" -> a.add(b);
            case "sub" -> a.subtract(b);
            case "mul" -> parts[1].equals("hi") ? product.shiftRight(LaneInstruction.bits(type)) : product;
            case "mad" -> product.add(value(result, z));
            case "div" -> b.signum() == 0 ? BigInteger.ONE.negate() : a.divide(b);
            case "rem" -> b.signum() == 0 ? a : a.subtract(a.divide(b).multiply(b));
            case "min" -> a.min(b);
            case "max" -> a.max(b);
            case "and" -> a.and(b);
            case "or" -> a.or(b);
            case "xor" -> a.xor(b);
            case "shl" -> a.shiftLeft(shift);
            case "shr" -> a.shiftRight(shift);
            default -> throw new IllegalArgumentException(String.join(".", parts));
        };
        return value(result, all.longValue()).longValue();
    }

    private static boolean compare(String comparison, String type, long x, long y) {
        int order;
        if (type.equals("f32")) {
            float a = Float.intBitsToFloat((int) x);
            float b = Float.intBitsToFloat((int) y);
            if (Float.isNaN(a) || Float.isNaN(b)) {
                return comparison.equals("nan");
            }
            order = a < b ? -1 : a > b ? 1 : 0;
        } else {
            order = value(type, x).compareTo(value(type, y));
        }
        return switch (comparison) {
            case "lt" -> order < 0;
            case "le" -> order <= 0;
            case "gt" -> order > 0;
            case "ge" -> order >= 0;
            case "eq" -> order == 0;
            case "ne" -> order != 0;
            default -> false;
        };
    }

    private static long bits(float value) {
        return Float.isNaN(value) ? NAN : Float.floatToRawIntBits(value) & 0xffff_ffffL;
    }

    /** Sums, products and quotients of fp32 in fp64 are so exact that rounding them again changes nothing. */
    private static long ofFloats(String name, int x, int y, int z) {
        double a = Float.intBitsToFloat(x);
        double b = Float.intBitsToFloat(y);
        float c = Float.intBitsToFloat(z);
        return switch (name) {
            case "neg" -> x ^ 0x8000_0000L;
            case "abs" -> x & 0x7fff_ffffL;
            case "fma" -> {
                boolean exact = Double.isFinite(a) && Double.isFinite(b) && Float.isFinite(c) && a * b + c != 0;
                yield bits(
                        exact
                                ? new BigDecimal(a)
                                        .multiply(new BigDecimal(b))
                                        .add(new BigDecimal(c))
                                        .floatValue()
                                : (float) (a * b + c));
            }
            case "add" -> bits((float) (a + b));
            case "sub" -> bits((float) (a - b));
            case "mul" -> bits((float) (a * b));
            case "div" -> bits((float) (a / b));
            case "min" -> bits((float) (Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.min(a, b)));
            case "max" -> bits((float) (Double.isNaN(a) ? b : Double.isNaN(b) ? a : Math.max(a, b)));
            case "sqrt" -> bits((float) Math.sqrt(a));
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static long converted(String[] parts, long a, long b) {
        String from = parts[parts.length - 1];
        String to = parts[parts.length - 2];
        boolean fromInteger = from.startsWith("u");
        return switch (to) {
            case "f16", "bf16" -> narrow(to, a);
            case "f16x2" -> narrow("f16", a) << 16 | narrow("f16", b);
            case "bf16x2" -> narrow("bf16", a) << 16 | narrow("bf16", b);
            case "f32" ->
                fromInteger ? bits(new BigDecimal(value(from, a)).floatValue()) : bits((float) half((int) a & 0xffff));
            default -> fromInteger ? value(to, value(from, a).longValue()).longValue() : nearest(a);
        };
    }

    /** The unsigned integer of 32 bits that is nearest to a number of fp32. */
    private static long nearest(long bits) {
        float value = Float.intBitsToFloat((int) bits);
        if (!Float.isFinite(value)) {
            return value > 0 ? 0xffff_ffffL : 0;
        }
        return new BigDecimal(value)
                .setScale(0, RoundingMode.HALF_EVEN)
                .toBigInteger()
                .max(BigInteger.ZERO)
                .min(BigInteger.valueOf(0xffff_ffffL))
                .longValue();
    }

    private static double half(int bits) {
        int exponent = bits >> 10 & 31;
        int fraction = bits & 1023;
        double magnitude = exponent == 31
                ? fraction == 0 ? Double.POSITIVE_INFINITY : Double.NaN
                : exponent == 0 ? fraction * 0x1p-24 : (1024 + fraction) * Math.pow(2, exponent - 25);
        return bits >> 15 == 0 ? magnitude : -magnitude;
    }

    /** The narrow number that is nearest, of two that are equally near the even one. */
    private static long narrow(String type, long bits) {
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
        if (low < infinity) {
            double below = magnitude - decoded.applyAsDouble(low);
            double above = decoded.applyAsDouble(low + 1) - magnitude;
            low += above < below || above == below && (low & 1) == 1 ? 1 : 0;
        }
        return low | (Float.floatToRawIntBits(value) < 0 ? 0x8000 : 0);
    }
}
