package baton.cuda.sim;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * An instruction that computes a register, or a predicate, from others of the same lane.
 *
 * @param result its type, such as {@code u32} or {@code pred}
 * @param operands their types
 */
record LaneInstruction(LaneLoop loop, String result, List<String> operands) {
    static final String PREDICATE = "pred";

    /** All, by opcodes such as {@code mad.wide.u32}. */
    static final Map<String, LaneInstruction> ALL = all();

    private static Map<String, LaneInstruction> all() {
        Table table = new Table(new HashMap<>());
        IntegerInstructions.addTo(table);
        FloatInstructions.addTo(table);
        Conversions.addTo(table);
        return Map.copyOf(table.instructions);
    }

    /** Bits of a type such as {@code bf16x2}. */
    static int bits(String type) {
        return switch (type) {
            case "bf16" -> 16;
            case "f16x2", "bf16x2" -> 32;
            default -> Integer.parseInt(type.substring(1));
        };
    }

    private static boolean isWide(String type) {
        return !type.equals(PREDICATE) && bits(type) == Long.SIZE;
    }

    /** Instructions while they are collected. */
    record Table(Map<String, LaneInstruction> instructions) {
        void add(String opcode, String result, String operands, LaneFunction function) {
            List<String> types = List.of(operands.split(" "));
            LaneLoop loop = LaneLoop.of(new LaneLoop.Plan(
                    function,
                    result.equals(PREDICATE),
                    isWide(result),
                    isWide(types.get(0)),
                    types.size() > 1 && isWide(types.get(1)),
                    types.size() > 2 && isWide(types.get(2))));
            if (instructions.put(opcode, new LaneInstruction(loop, result, types)) != null) {
                throw new IllegalStateException("two instructions " + opcode);
            }
        }

        /** {@code name.type}, with operands and a result of this type. */
        void words(String name, String type, int operands, LaneFunction.Words function) {
            add(name + "." + type, type, (type + " ").repeat(operands).trim(), function);
        }

        void wide(String name, String type, int operands, LaneFunction.Wide function) {
            add(name + "." + type, type, (type + " ").repeat(operands).trim(), function);
        }
    }
}
