package baton.cuda.sim;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The registers of a kernel, and the operands of its instructions: rows of registers, and of constants behind them. */
final class Operands {
    /** The predicate that always holds. */
    static final int ALWAYS = 0;

    private static final Pattern ADDRESS = Pattern.compile("\\[\\s*([\\w$%.]+)\\s*(?:([+-])\\s*(-?\\w+))?\\s*\\]");
    private static final Pattern INTEGER = Pattern.compile("(-?)(0[xX][0-9a-fA-F]+|\\d+)U?");
    private static final Pattern FLOAT_BITS = Pattern.compile("0[fF]([0-9a-fA-F]{8})");

    private final KernelText kernel;
    private final Map<String, Integer> rows = new HashMap<>();
    private final Map<Integer, Integer> constants = new LinkedHashMap<>();
    private final Map<Long, Integer> wideConstants = new LinkedHashMap<>();
    private int words;
    private int longs;
    private int predicates = ALWAYS + 1;

    Operands(KernelText kernel) {
        this.kernel = kernel;
        for (Warp.Special special : Warp.Special.values()) {
            rows.put(special.register(), special.row);
            words++;
        }
        kernel.registers()
                .forEach((name, type) -> rows.put(
                        name,
                        type.equals(LaneInstruction.PREDICATE)
                                ? predicates++
                                : LaneInstruction.bits(type) == Long.SIZE ? longs++ : words++));
    }

    int words() {
        return words;
    }

    int longs() {
        return longs;
    }

    int predicates() {
        return predicates;
    }

    List<Integer> constants() {
        return new ArrayList<>(constants.keySet());
    }

    List<Long> wideConstants() {
        return new ArrayList<>(wideConstants.keySet());
    }

    /** Where a register of an operand is: the index of its first lane in the words or longs of a warp. */
    record Row(int first, boolean wide) {}

    /** An address in memory: a register and an offset. */
    record Address(Row base, long offset) {
        /** Whether it is the same in all of the lanes. */
        boolean isSame(Warp warp, int lanes) {
            long first = of(warp, Integer.numberOfTrailingZeros(lanes));
            int left = lanes & lanes - 1;
            while (left != 0 && of(warp, Integer.numberOfTrailingZeros(left)) == first) {
                left &= left - 1;
            }
            return left == 0;
        }

        long of(Warp warp, int lane) {
            return (base.wide ? warp.longs[base.first + lane] : Integer.toUnsignedLong(warp.words[base.first + lane]))
                    + offset;
        }
    }

    int predicate(Statement statement, String operand) {
        if (!LaneInstruction.PREDICATE.equals(kernel.registers().get(operand))) {
            throw statement.refused("%s is no register of type .pred".formatted(operand));
        }
        return row(operand);
    }

    private int row(String register) {
        return rows.getOrDefault(register, 0);
    }

    /** A register that is written, of the size of the type. */
    Row result(Statement statement, String operand, String type) {
        return register(statement, operand, type, false);
    }

    /** A register of at least the size of the type. */
    Row widerRegister(Statement statement, String operand, String type) {
        return register(statement, operand, type, true);
    }

    private Row register(Statement statement, String operand, String type, boolean wider) {
        String declared = kernel.registers().get(operand);
        if (declared == null) {
            throw statement.refused(operand + " is no register that is declared");
        }
        if (!fits(declared, type, wider)) {
            throw statement.refused("%s is .%s, for the instruction's type .%s".formatted(operand, declared, type));
        }
        return new Row(row(operand) * Warp.LANES, LaneInstruction.bits(declared) == Long.SIZE);
    }

    private static boolean fits(String declared, String type, boolean wider) {
        if (declared.equals(LaneInstruction.PREDICATE)) {
            return false;
        }
        if (declared.equals("f32")) {
            return type.equals("f32") || type.equals("b32");
        }
        int size = LaneInstruction.bits(declared);
        int needed = LaneInstruction.bits(type);
        return size == needed || wider && size > needed && !type.equals("f32");
    }

    /** An operand that is read: a register, a special register, a constant or the address of a variable in shared memory. */
    Row source(Statement statement, String operand, String type) {
        return source(statement, operand, type, false);
    }

    Row source(Statement statement, String operand, String type, boolean wider) {
        if (kernel.registers().containsKey(operand)) {
            return register(statement, operand, type, wider);
        }
        int bits = LaneInstruction.bits(type);
        if (rows.containsKey(operand)) {
            if (bits != Integer.SIZE || type.startsWith("f")) {
                throw statement.refused("%s has 32 bits, for the instruction's type .%s".formatted(operand, type));
            }
            return new Row(row(operand) * Warp.LANES, false);
        }
        Integer variable = kernel.shared().get(operand);
        long value = variable != null ? variable : constant(statement, operand, type);
        return bits == Long.SIZE ? wideConstant(value) : constant((int) value);
    }

    private Row constant(int value) {
        return new Row((words + constants.computeIfAbsent(value, _ -> constants.size())) * Warp.LANES, false);
    }

    private Row wideConstant(long value) {
        return new Row((longs + wideConstants.computeIfAbsent(value, _ -> wideConstants.size())) * Warp.LANES, true);
    }

    /** The bits of a constant. */
    static long constant(Statement statement, String operand, String type) {
        Matcher matcher = FLOAT_BITS.matcher(operand);
        if (matcher.matches() && (type.equals("f32") || type.equals("b32"))) {
            return Integer.parseUnsignedInt(matcher.group(1), 16);
        }
        matcher = INTEGER.matcher(operand);
        if (matcher.matches() && !type.equals("f32")) {
            String digits = matcher.group(2);
            long magnitude = digits.startsWith("0x") || digits.startsWith("0X")
                    ? Long.parseUnsignedLong(digits.substring(2), 16)
                    : Long.parseUnsignedLong(digits);
            return matcher.group(1).isEmpty() ? magnitude : -magnitude;
        }
        throw statement.refused("%s is no register, variable or constant of type .%s".formatted(operand, type));
    }

    /** An integer that the text has. */
    static int immediate(Statement statement, String operand) {
        return (int) constant(statement, operand, "u32");
    }

    /** An operand such as {@code [%rd1+16]}. */
    Address address(Statement statement, String operand, boolean shared) {
        Matcher matcher = ADDRESS.matcher(operand);
        if (!matcher.matches()) {
            throw statement.refused(operand + " is not [REGISTER], [REGISTER+OFFSET], [VARIABLE] or [VARIABLE+OFFSET]");
        }
        long offset = matcher.group(3) == null ? 0 : constant(statement, matcher.group(3), "s64");
        String base = matcher.group(1);
        String declared = kernel.registers().get(base);
        boolean narrow = shared && (declared == null || LaneInstruction.bits(declared) == Integer.SIZE);
        if (!shared && declared == null) {
            throw statement.refused(base + " is no register that is declared");
        }
        return new Address(
                source(statement, base, narrow ? "u32" : "u64"), "-".equals(matcher.group(2)) ? -offset : offset);
    }

    /** The operands of {@code {a, b}}, or the operand alone. */
    static List<String> elements(String operand) {
        if (!operand.startsWith("{") || !operand.endsWith("}")) {
            return List.of(operand);
        }
        return List.of(operand.substring(1, operand.length() - 1).trim().split("\\s*,\\s*", -1));
    }

    int parameter(Statement statement, String operand, String type) {
        Matcher matcher = ADDRESS.matcher(operand);
        int index = 0;
        for (Map.Entry<String, String> parameter : kernel.parameters().entrySet()) {
            if (matcher.matches()
                    && matcher.group(2) == null
                    && parameter.getKey().equals(matcher.group(1))) {
                if (LaneInstruction.bits(parameter.getValue()) != LaneInstruction.bits(type)) {
                    throw statement.refused(
                            "the parameter is .%s, the instruction's type .%s".formatted(parameter.getValue(), type));
                }
                return index;
            }
            index++;
        }
        throw statement.refused(
                operand + " is none of the parameters " + kernel.parameters().keySet());
    }

    int label(Statement statement, String operand) {
        Integer at = kernel.labels().get(operand);
        if (at == null) {
            throw statement.refused(operand + " is no label of the kernel");
        }
        return at;
    }
}
