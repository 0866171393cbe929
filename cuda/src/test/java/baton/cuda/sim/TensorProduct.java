package baton.cuda.sim;

import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The instruction {@code mma}: adds the product of two matrices, of 16 rows and of 8 columns, to a third one. Each product is exact, and is
 * added in the order of the inner dimension, each sum rounded to fp32. The device rounds sums otherwise.
 *
 * @param bf16 whether the elements of the left and the right matrix are bf16, not f16
 */
record TensorProduct(boolean bf16, int[] to, int[] left, int[] right, int[] addend) implements Operation {
    private static final Pattern OPCODE =
            Pattern.compile("mma\\.sync\\.aligned\\.m16n8k16\\.row\\.col\\.f32\\.(bf16|f16)\\.(bf16|f16)\\.f32");
    private static final int ROWS = 16;
    private static final int COLUMNS = 8;
    private static final int INNER = 16;
    private static final int QUAD = 4;

    /** Elements along the inner dimension that one register of four lanes has. */
    private static final int PER_REGISTER = 2 * QUAD;

    static Operation operation(Statement statement, Operands operands) {
        Matcher matcher = OPCODE.matcher(statement.opcode());
        if (!matcher.matches() || !matcher.group(1).equals(matcher.group(2))) {
            throw Decoder.unknown(statement);
        }
        Decoder.count(statement, 4);
        List<String> sums = Operands.elements(statement.operands().getFirst());
        List<String> addends = Operands.elements(statement.operands().getLast());
        for (int i = 0; i < sums.size(); i++) {
            int same = addends.indexOf(sums.get(i));
            if (same >= 0 && same != i) {
                throw statement.refused(sums.get(i) + " is a result and an addend of another result");
            }
        }
        return new TensorProduct(
                matcher.group(1).equals("bf16"),
                rows(statement, operands, 0, "f32", 4),
                rows(statement, operands, 1, "b32", 4),
                rows(statement, operands, 2, "b32", 2),
                rows(statement, operands, 3, "f32", 4));
    }

    private static int[] rows(Statement statement, Operands operands, int operand, String type, int count) {
        List<String> names = Operands.elements(statement.operands().get(operand));
        if (names.size() != count) {
            throw statement.refused(
                    "%s has %d registers, not %d".formatted(statement.operands().get(operand), names.size(), count));
        }
        int[] rows = new int[count];
        for (int i = 0; i < count; i++) {
            rows[i] = (operand == 0
                            ? operands.result(statement, names.get(i), type)
                            : operands.source(statement, names.get(i), type))
                    .first();
        }
        return rows;
    }

    @Override
    public void run(Warp warp, int lanes) {
        warp.checkMembers(Warp.ALL, lanes);
        int[] words = warp.words;
        float[] a = warp.leftMatrix;
        float[] b = warp.rightMatrix;
        for (int lane = 0; lane < Warp.LANES; lane++) {
            int group = lane / QUAD;
            int within = lane % QUAD;
            // Registers alternate between the upper and the lower 8 rows, then go on along the inner dimension.
            for (int i = 0; i < left.length; i++) {
                int row = (group + (i & 1) * (ROWS / 2)) * INNER;
                put(a, row + (i >> 1) * PER_REGISTER, within, 1, words[left[i] + lane]);
            }
            for (int i = 0; i < right.length; i++) {
                put(b, i * PER_REGISTER * COLUMNS + group, within, COLUMNS, words[right[i] + lane]);
            }
        }
        for (int row = 0; row < ROWS; row++) {
            int half = row < ROWS / 2 ? 0 : 2;
            int first = row % (ROWS / 2) * QUAD;
            float s0 = Float.intBitsToFloat(words[addend[half] + first]);
            float s1 = Float.intBitsToFloat(words[addend[half + 1] + first]);
            float s2 = Float.intBitsToFloat(words[addend[half] + first + 1]);
            float s3 = Float.intBitsToFloat(words[addend[half + 1] + first + 1]);
            float s4 = Float.intBitsToFloat(words[addend[half] + first + 2]);
            float s5 = Float.intBitsToFloat(words[addend[half + 1] + first + 2]);
            float s6 = Float.intBitsToFloat(words[addend[half] + first + 3]);
            float s7 = Float.intBitsToFloat(words[addend[half + 1] + first + 3]);
            for (int k = 0; k < INNER; k++) {
                float x = a[row * INNER + k];
                int at = k * COLUMNS;
                s0 = Math.fma(x, b[at], s0);
                s1 = Math.fma(x, b[at + 1], s1);
                s2 = Math.fma(x, b[at + 2], s2);
                s3 = Math.fma(x, b[at + 3], s3);
                s4 = Math.fma(x, b[at + 4], s4);
                s5 = Math.fma(x, b[at + 5], s5);
                s6 = Math.fma(x, b[at + 6], s6);
                s7 = Math.fma(x, b[at + 7], s7);
            }
            int even = to[half] + first;
            int odd = to[half + 1] + first;
            words[even] = FloatInstructions.bits(s0);
            words[odd] = FloatInstructions.bits(s1);
            words[even + 1] = FloatInstructions.bits(s2);
            words[odd + 1] = FloatInstructions.bits(s3);
            words[even + 2] = FloatInstructions.bits(s4);
            words[odd + 2] = FloatInstructions.bits(s5);
            words[even + 3] = FloatInstructions.bits(s6);
            words[odd + 3] = FloatInstructions.bits(s7);
        }
    }

    /** Puts the two elements of a register to where they are along the inner dimension. */
    private void put(float[] matrix, int first, int within, int stride, int bits) {
        int at = first + 2 * within * stride;
        matrix[at] = bf16 ? Float.intBitsToFloat(bits << Short.SIZE) : Float.float16ToFloat((short) bits);
        matrix[at + stride] =
                bf16 ? Float.intBitsToFloat(bits & 0xffff_0000) : Float.float16ToFloat((short) (bits >>> Short.SIZE));
    }
}
