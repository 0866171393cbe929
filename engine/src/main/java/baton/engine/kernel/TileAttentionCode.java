package baton.engine.kernel;

import static baton.memory.Assembler.Mem.at;
import static baton.memory.Assembler.Reg.R10;
import static baton.memory.Assembler.Reg.R11;
import static baton.memory.Assembler.Reg.R8;
import static baton.memory.Assembler.Reg.R9;
import static baton.memory.Assembler.Reg.RAX;
import static baton.memory.Assembler.Reg.RCX;
import static baton.memory.Assembler.Reg.RDI;
import static baton.memory.Assembler.Reg.RDX;
import static baton.memory.Assembler.Reg.RSI;

import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;

/** What attention takes on the matrix unit beside products: numbers in the order of its tiles. Strides are in bytes. */
final class TileAttentionCode {
    /** Positions that {@link #valueColumns} takes at once: the pairs of a tile's row. */
    static final int POSITIONS = 32;

    /** Columns of a part of 128 bits, which {@link DecodeCode#transpose} gives one by one. */
    private static final int GROUP = 4;

    private static final int BF16_BITS = 16;
    private static final int LANES = Width.ZMM.lanes();
    private static final int VECTOR = Width.ZMM.bytes();
    private static final int PANEL_ROW = ProductCode.VECTORS * VECTOR;

    private TileAttentionCode() {}

    /**
     * {@code (rows, to, pairs)}: rows of fp32 of a panel's width become a panel of pairs, {@code to[i][lane] = rows[2 * i][lane], rows[2 * i +
     * 1][lane]}, rounded to nearest even.
     */
    static byte[] pairs() {
        Assembler code = new Assembler(Width.ZMM);
        int indices = ProductCode.VECTORS;
        code.move(RAX, Constants.address(Constants.INTERLEAVED));
        code.load(indices, at(RAX, 0));
        loop(code, RDX, () -> {
            for (int i = 0; i < ProductCode.VECTORS; i++) {
                code.load(i, at(RDI, PANEL_ROW + i * VECTOR));
                code.op(Binary.NARROW_PAIR, i, i, at(RDI, i * VECTOR));
                code.permuteShorts(i, indices, i);
                code.store(at(RSI, i * VECTOR), i);
            }
            code.add(RDI, 2 * PANEL_ROW);
            code.add(RSI, PANEL_ROW);
        });
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (from, next, stride, to, to stride, groups)}: values in bf16 of 16 positions at {@code from} and of 16 at {@code next} as
     * rows of positions, {@code to[element][position]}. Groups are of 16 elements.
     */
    static byte[] valueColumns() {
        Assembler code = new Assembler(Width.ZMM);
        int half = LANES / 2;
        loop(code, R9, () -> {
            for (int i = 0; i < LANES; i++) {
                if (i % half == 0) {
                    code.move(RAX, i == 0 ? RDI : RSI);
                }
                pair(code, i, LANES, RAX, RDX, 0);
                code.address(RAX, at(RAX, RDX, 2, 0));
            }
            // Columns come in another order than rows are stored.
            code.move(RAX, R8);
            code.shiftLeft(RAX, 2);
            code.move(R10, RCX);
            DecodeCode.transpose(code, (element, register, _) -> {
                if (element > 0 && element < GROUP) {
                    code.add(R10, R8);
                }
                if (element < GROUP) {
                    code.move(R11, R10);
                }
                code.store(at(R11, 0), register);
                code.add(R11, RAX);
            });
            code.address(RCX, at(RCX, RAX, 4, 0));
            code.add(RDI, LANES * Short.BYTES);
            code.add(RSI, LANES * Short.BYTES);
        });
        code.returnFromVectors();
        return code.code();
    }

    /** {@code (from, stride, to, pairs)}: values in bf16 as a panel of pairs of positions, {@code to[position / 2][element], 2 positions}. */
    static byte[] valuePairs() {
        Assembler code = new Assembler(Width.ZMM);
        loop(code, RCX, () -> {
            for (int i = 0; i < ProductCode.VECTORS; i++) {
                pair(code, i, ProductCode.VECTORS, RDI, RSI, i * LANES * Short.BYTES);
                code.store(at(RDX, i * VECTOR), i);
            }
            code.address(RDI, at(RDI, RSI, 2, 0));
            code.add(RDX, PANEL_ROW);
        });
        code.returnFromVectors();
        return code.code();
    }

    /** 16 bits from a row in the lower half of each lane, those of the next row in the upper half. */
    private static void pair(Assembler code, int to, int spare, Reg row, Reg stride, int offset) {
        code.op(Unary.SHORTS_TO_INTS, to, at(row, offset));
        code.op(Unary.SHORTS_TO_INTS, spare, at(row, stride, 1, offset));
        code.shiftLeft(spare, spare, BF16_BITS);
        code.op(Binary.ADD_INTS, to, to, spare);
    }

    private static void loop(Assembler code, Reg count, Runnable body) {
        Label loop = code.label();
        code.bind(loop);
        body.run();
        code.subtract(count, 1);
        code.jump(Condition.NOT_EQUAL, loop);
    }
}
