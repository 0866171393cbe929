package baton.cuda.sim;

import static baton.cuda.sim.LaneInstruction.PREDICATE;

import java.util.Map;

/** Arithmetic of integers and of bits. Registers of 16 bits are the low halves of words, with anything above. */
final class IntegerInstructions {
    private static final int HALF = 0xffff;
    /** Comparisons with the results of {@link Integer#compare} for which they hold: less, equal, greater. */
    static final Map<String, boolean[]> COMPARISONS = Map.of(
            "lt", new boolean[] {true, false, false},
            "le", new boolean[] {true, true, false},
            "gt", new boolean[] {false, false, true},
            "ge", new boolean[] {false, true, true},
            "eq", new boolean[] {false, true, false},
            "ne", new boolean[] {true, false, true});

    private IntegerInstructions() {}

    static void addTo(LaneInstruction.Table table) {
        words(table);
        halves(table);
        wide(table);
        bits(table);
        comparisons(table);
    }

    private static void words(LaneInstruction.Table table) {
        table.words("add", "u32 s32", 2, (a, b, _) -> a + b);
        table.words("sub", "u32 s32", 2, (a, b, _) -> a - b);
        table.words("mul.lo", "u32 s32", 2, (a, b, _) -> a * b);
        table.words("mad.lo", "u32 s32", 3, (a, b, c) -> a * b + c);
        table.words("mul.hi", "u32", 2, (a, b, _) -> (int) (unsigned(a) * unsigned(b) >>> Integer.SIZE));
        table.words("mul.hi", "s32", 2, (a, b, _) -> (int) ((long) a * b >> Integer.SIZE));
        table.words("mad.hi", "u32", 3, (a, b, c) -> (int) (unsigned(a) * unsigned(b) >>> Integer.SIZE) + c);
        table.words("mad.hi", "s32", 3, (a, b, c) -> (int) ((long) a * b >> Integer.SIZE) + c);
        table.words("div", "u32", 2, (a, b, _) -> b == 0 ? -1 : Integer.divideUnsigned(a, b));
        table.words("div", "s32", 2, (a, b, _) -> b == 0 ? -1 : a / b);
        table.words("rem", "u32", 2, (a, b, _) -> b == 0 ? a : Integer.remainderUnsigned(a, b));
        table.words("rem", "s32", 2, (a, b, _) -> b == 0 ? a : a % b);
        table.words("min", "u32", 2, (a, b, _) -> Integer.compareUnsigned(a, b) <= 0 ? a : b);
        table.words("max", "u32", 2, (a, b, _) -> Integer.compareUnsigned(a, b) >= 0 ? a : b);
        table.words("min", "s32", 2, (a, b, _) -> Math.min(a, b));
        table.words("max", "s32", 2, (a, b, _) -> Math.max(a, b));
        table.words("neg", "s32", 1, (a, _, _) -> -a);
        table.words("abs", "s32", 1, (a, _, _) -> Math.abs(a));
    }

    private static void halves(LaneInstruction.Table table) {
        table.words("add", "u16 s16", 2, (a, b, _) -> a + b & HALF);
        table.words("sub", "u16 s16", 2, (a, b, _) -> a - b & HALF);
        table.words("mul.lo", "u16 s16", 2, (a, b, _) -> a * b & HALF);
        table.words("and", "b16", 2, (a, b, _) -> a & b);
        table.words("or", "b16", 2, (a, b, _) -> a | b);
        table.words("xor", "b16", 2, (a, b, _) -> a ^ b);
        table.words("not", "b16", 1, (a, _, _) -> ~a & HALF);
        table.add("shl.b16", "b16", "b16 u32", words((a, b, _) -> clamped(b) < Short.SIZE ? a << b & HALF : 0));
        for (String type : new String[] {"u16", "b16"}) {
            table.add(
                    "shr." + type,
                    type,
                    type + " u32",
                    words((a, b, _) -> clamped(b) < Short.SIZE ? (a & HALF) >>> b : 0));
        }
        table.add(
                "shr.s16",
                "s16",
                "s16 u32",
                words((a, b, _) -> (short) a >> Math.min(clamped(b), Short.SIZE - 1) & HALF));
        table.add("mul.wide.u16", "u32", "u16 u16", words((a, b, _) -> (a & HALF) * (b & HALF)));
        table.add("mul.wide.s16", "s32", "s16 s16", words((a, b, _) -> (short) a * (short) b));
    }

    private static void wide(LaneInstruction.Table table) {
        table.wide("add", "u64 s64", 2, (a, b, _) -> a + b);
        table.wide("sub", "u64 s64", 2, (a, b, _) -> a - b);
        table.wide("mul.lo", "u64 s64", 2, (a, b, _) -> a * b);
        table.wide("mad.lo", "u64 s64", 3, (a, b, c) -> a * b + c);
        table.wide("mul.hi", "u64", 2, (a, b, _) -> Math.unsignedMultiplyHigh(a, b));
        table.wide("mul.hi", "s64", 2, (a, b, _) -> Math.multiplyHigh(a, b));
        table.wide("mad.hi", "u64", 3, (a, b, c) -> Math.unsignedMultiplyHigh(a, b) + c);
        table.wide("mad.hi", "s64", 3, (a, b, c) -> Math.multiplyHigh(a, b) + c);
        table.wide("div", "u64", 2, (a, b, _) -> b == 0 ? -1 : Long.divideUnsigned(a, b));
        table.wide("div", "s64", 2, (a, b, _) -> b == 0 ? -1 : a / b);
        table.wide("rem", "u64", 2, (a, b, _) -> b == 0 ? a : Long.remainderUnsigned(a, b));
        table.wide("rem", "s64", 2, (a, b, _) -> b == 0 ? a : a % b);
        table.wide("min", "u64", 2, (a, b, _) -> Long.compareUnsigned(a, b) <= 0 ? a : b);
        table.wide("max", "u64", 2, (a, b, _) -> Long.compareUnsigned(a, b) >= 0 ? a : b);
        table.wide("min", "s64", 2, (a, b, _) -> Math.min(a, b));
        table.wide("max", "s64", 2, (a, b, _) -> Math.max(a, b));
        table.wide("neg", "s64", 1, (a, _, _) -> -a);
        table.wide("abs", "s64", 1, (a, _, _) -> Math.abs(a));
        table.add("mul.wide.u32", "u64", "u32 u32", wide((a, b, _) -> unsigned((int) a) * unsigned((int) b)));
        table.add("mul.wide.s32", "s64", "s32 s32", wide((a, b, _) -> a * b));
        table.add("mad.wide.u32", "u64", "u32 u32 u64", wide((a, b, c) -> unsigned((int) a) * unsigned((int) b) + c));
        table.add("mad.wide.s32", "s64", "s32 s32 s64", wide((a, b, c) -> a * b + c));
    }

    private static void bits(LaneInstruction.Table table) {
        table.words("and", "b32", 2, (a, b, _) -> a & b);
        table.words("or", "b32", 2, (a, b, _) -> a | b);
        table.words("xor", "b32", 2, (a, b, _) -> a ^ b);
        table.words("not", "b32", 1, (a, _, _) -> ~a);
        table.wide("and", "b64", 2, (a, b, _) -> a & b);
        table.wide("or", "b64", 2, (a, b, _) -> a | b);
        table.wide("xor", "b64", 2, (a, b, _) -> a ^ b);
        table.wide("not", "b64", 1, (a, _, _) -> ~a);
        table.add("shl.b32", "b32", "b32 u32", words((a, b, _) -> clamped(b) < Integer.SIZE ? a << b : 0));
        table.add("shl.b64", "b64", "b64 u32", wide((a, b, _) -> clamped((int) b) < Long.SIZE ? a << b : 0));
        for (String type : new String[] {"u", "b"}) {
            table.add(
                    "shr." + type + "32",
                    type + "32",
                    type + "32 u32",
                    words((a, b, _) -> clamped(b) < Integer.SIZE ? a >>> b : 0));
            table.add(
                    "shr." + type + "64",
                    type + "64",
                    type + "64 u32",
                    wide((a, b, _) -> clamped((int) b) < Long.SIZE ? a >>> b : 0));
        }
        table.add("shr.s32", "s32", "s32 u32", words((a, b, _) -> a >> Math.min(clamped(b), Integer.SIZE - 1)));
        table.add("shr.s64", "s64", "s64 u32", wide((a, b, _) -> a >> Math.min(clamped((int) b), Long.SIZE - 1)));
        table.add("bfe.u32", "u32", "u32 u32 u32", words((a, b, c) -> fieldUnsigned(a, b & 0xff, c & 0xff)));
        table.add("bfe.s32", "s32", "s32 u32 u32", words((a, b, c) -> fieldSigned(a, b & 0xff, c & 0xff)));
        table.add("prmt.b32", "b32", "b32 b32 b32", words(IntegerInstructions::permuted));
        table.words("brev", "b32", 1, (a, _, _) -> Integer.reverse(a));
        table.add("popc.b32", "u32", "b32", words((a, _, _) -> Integer.bitCount(a)));
        table.add("clz.b32", "u32", "b32", words((a, _, _) -> Integer.numberOfLeadingZeros(a)));
        table.add("popc.b64", "u32", "b64", wide((a, _, _) -> Long.bitCount(a)));
        table.add("clz.b64", "u32", "b64", wide((a, _, _) -> Long.numberOfLeadingZeros(a)));
    }

    private static void comparisons(LaneInstruction.Table table) {
        COMPARISONS.forEach((name, holds) -> {
            boolean less = holds[0];
            boolean equal = holds[1];
            boolean greater = holds[2];
            boolean equality = less == greater;
            for (String type : new String[] {"s32", "u32", "b32", "s16", "u16", "b16"}) {
                int flip = type.equals("u32") ? Integer.MIN_VALUE : 0;
                LaneFunction.Words function = switch (type) {
                    case "s16" -> (a, b, _) -> holds((short) a, (short) b, less, equal, greater);
                    case "u16", "b16" -> (a, b, _) -> holds(a & HALF, b & HALF, less, equal, greater);
                    default -> (a, b, _) -> holds(a ^ flip, b ^ flip, less, equal, greater);
                };
                if (equality || !type.startsWith("b")) {
                    table.add("setp." + name + "." + type, PREDICATE, type + " " + type, function);
                }
            }
            for (String type : new String[] {"s64", "u64", "b64"}) {
                long flip = type.equals("u64") ? Long.MIN_VALUE : 0;
                if (equality || !type.startsWith("b")) {
                    table.add(
                            "setp." + name + "." + type,
                            PREDICATE,
                            type + " " + type,
                            wide((a, b, _) -> holds(a ^ flip, b ^ flip, less, equal, greater)));
                }
            }
        });
    }

    private static int holds(int a, int b, boolean less, boolean equal, boolean greater) {
        return less && a < b || equal && a == b || greater && a > b ? 1 : 0;
    }

    private static int holds(long a, long b, boolean less, boolean equal, boolean greater) {
        return less && a < b || equal && a == b || greater && a > b ? 1 : 0;
    }

    private static LaneFunction.Words words(LaneFunction.Words function) {
        return function;
    }

    private static LaneFunction.Wide wide(LaneFunction.Wide function) {
        return function;
    }

    private static long unsigned(int a) {
        return Integer.toUnsignedLong(a);
    }

    /** A shift's count, of which all beyond 64 are the same. */
    private static int clamped(int count) {
        return count < 0 ? Long.SIZE : Math.min(count, Long.SIZE);
    }

    private static int fieldUnsigned(int a, int first, int length) {
        return first >= Integer.SIZE || length == 0
                ? 0
                : a >>> first & (length >= Integer.SIZE ? -1 : (1 << length) - 1);
    }

    private static int fieldSigned(int a, int first, int length) {
        if (length == 0) {
            return 0;
        }
        int sign = a >> Math.min(first + length - 1, Integer.SIZE - 1) & 1;
        int above = first + length >= Integer.SIZE ? Math.max(0, Integer.SIZE - first) : length;
        int field = fieldUnsigned(a, first, length);
        return sign == 0 || above >= Integer.SIZE ? field : field | -1 << above;
    }

    /** Inserts the low bits of {@code a} into {@code b}. */
    static int inserted(int a, int b, int first, int length) {
        if (first >= Integer.SIZE || length == 0) {
            return b;
        }
        int mask = (length >= Integer.SIZE ? -1 : (1 << length) - 1) << first;
        return b & ~mask | a << first & mask;
    }

    private static int permuted(int a, int b, int selection) {
        long bytes = unsigned(b) << Integer.SIZE | unsigned(a);
        int result = 0;
        for (int i = 0; i < Integer.BYTES; i++) {
            int which = selection >>> 4 * i;
            int value = (int) (bytes >>> 8 * (which & 7)) & 0xff;
            result |= ((which & 8) == 0 ? value : (byte) value >> 7 & 0xff) << 8 * i;
        }
        return result;
    }
}
