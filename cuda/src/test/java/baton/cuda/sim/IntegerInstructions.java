package baton.cuda.sim;

import static baton.cuda.sim.LaneInstruction.PREDICATE;

import java.util.Map;

/** Arithmetic of integers and of bits. */
final class IntegerInstructions {
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
        table.words("add", "u32", 2, (a, b, _) -> a + b);
        table.words("sub", "u32", 2, (a, b, _) -> a - b);
        table.words("mul.lo", "u32", 2, (a, b, _) -> a * b);
        table.words("mad.lo", "u32", 3, (a, b, c) -> a * b + c);
        table.words("div", "u32", 2, (a, b, _) -> b == 0 ? -1 : Integer.divideUnsigned(a, b));
        table.words("rem", "u32", 2, (a, b, _) -> b == 0 ? a : Integer.remainderUnsigned(a, b));
        table.words("min", "u32", 2, (a, b, _) -> Integer.compareUnsigned(a, b) <= 0 ? a : b);
        table.words("max", "u32", 2, (a, b, _) -> Integer.compareUnsigned(a, b) >= 0 ? a : b);
        table.words("and", "b32", 2, (a, b, _) -> a & b);
        table.words("or", "b32", 2, (a, b, _) -> a | b);
        table.words("xor", "b32", 2, (a, b, _) -> a ^ b);
        table.add(
                "shl.b32", "b32", "b32 u32", (LaneFunction.Words) (a, b, _) -> clamped(b) < Integer.SIZE ? a << b : 0);
        table.add(
                "shr.u32", "u32", "u32 u32", (LaneFunction.Words) (a, b, _) -> clamped(b) < Integer.SIZE ? a >>> b : 0);
        table.wide("add", "u64", 2, (a, b, _) -> a + b);
        table.wide("mul.lo", "u64", 2, (a, b, _) -> a * b);
        table.wide("mad.lo", "u64", 3, (a, b, c) -> a * b + c);
        table.wide("mul.hi", "u64", 2, (a, b, _) -> Math.unsignedMultiplyHigh(a, b));
        table.wide("max", "u64", 2, (a, b, _) -> Long.compareUnsigned(a, b) >= 0 ? a : b);
        table.wide("and", "b64", 2, (a, b, _) -> a & b);
        table.wide("or", "b64", 2, (a, b, _) -> a | b);
        table.add("shl.b64", "b64", "b64 u32", (LaneFunction.Wide)
                (a, b, _) -> clamped((int) b) < Long.SIZE ? a << b : 0);
        table.add("shr.u64", "u64", "u64 u32", (LaneFunction.Wide)
                (a, b, _) -> clamped((int) b) < Long.SIZE ? a >>> b : 0);
        table.add("mad.wide.u32", "u64", "u32 u32 u64", (LaneFunction.Wide)
                (a, b, c) -> unsigned((int) a) * unsigned((int) b) + c);
        COMPARISONS.forEach((name, holds) -> {
            boolean less = holds[0];
            boolean equal = holds[1];
            boolean greater = holds[2];
            table.add("setp." + name + ".u32", PREDICATE, "u32 u32", (LaneFunction.Words)
                    (a, b, _) -> holds(Integer.compareUnsigned(a, b), less, equal, greater));
            table.add("setp." + name + ".u64", PREDICATE, "u64 u64", (LaneFunction.Wide)
                    (a, b, _) -> holds(Long.compareUnsigned(a, b), less, equal, greater));
        });
    }

    private static int holds(int order, boolean less, boolean equal, boolean greater) {
        return (order < 0 ? less : order == 0 ? equal : greater) ? 1 : 0;
    }

    private static long unsigned(int a) {
        return Integer.toUnsignedLong(a);
    }

    /** A shift's count, of which all beyond 64 are the same. */
    private static int clamped(int count) {
        return count < 0 ? Long.SIZE : Math.min(count, Long.SIZE);
    }
}
