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

import baton.kv.DType;
import baton.memory.Assembler;
import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;

/** The parts of {@link DecodeAttention} that are neither products nor for the matrix unit alone. Strides are in bytes. */
final class DecodeCode {
    /** Bytes of a query's number in a state: a vector of the greatest width. */
    static final int STATE = 64;

    /** Queries that are summed up side by side. */
    static final int SUMS = 4;

    /** Rows of a part of 128 bits. */
    private static final int GROUP = 4;

    private static final int BF16_BITS = 16;

    private DecodeCode() {}

    /** Elements of a key that {@link #keys} takes at once: two for each lane in bf16. */
    static int keyElements(Width width, DType dtype) {
        return dtype == DType.BF16 ? 2 * width.lanes() : width.lanes();
    }

    /**
     * {@code (from, stride, to, vectors)}: keys of as many positions as a vector has lanes, as columns of a panel: {@code to[d][position]}
     * in fp32. {@code vectors} are those of {@link #keyElements} that a key has.
     */
    static byte[] keys(Width width, DType dtype) {
        Assembler code = new Assembler(width);
        int lanes = width.lanes();
        int row = ProductCode.VECTORS * width.bytes();
        // Two of bf16 are transposed as one lane.
        ElementCode elements = new ElementCode(code, dtype == DType.BF16 ? DType.F32 : dtype, R10, lanes);
        Label loop = code.label();
        code.bind(loop);
        code.move(RAX, RDI);
        for (int i = 0; i < lanes; i++) {
            elements.load(i, at(RAX, 0));
            code.add(RAX, RSI);
        }
        transpose(code, (element, register, spare) -> {
            if (dtype != DType.BF16) {
                code.store(at(RDX, element * row), register);
            } else {
                code.shiftLeft(spare, register, BF16_BITS);
                code.store(at(RDX, 2 * element * row), spare);
                code.shiftRight(register, register, BF16_BITS);
                code.shiftLeft(register, register, BF16_BITS);
                code.store(at(RDX, (2 * element + 1) * row), register);
            }
        });
        code.add(RDI, keyElements(width, dtype) * dtype.bytes());
        code.add(RDX, keyElements(width, dtype) * row);
        code.subtract(RCX, 1);
        code.jump(Condition.NOT_EQUAL, loop);
        code.returnFromVectors();
        return code.code();
    }

    /** Emits the code for a column. */
    interface Column {
        /**
         * @param element of the rows, 0, 4, 8, 12, 1, 5 and so on
         * @param register that has it
         * @param spare register that is not needed any more
         */
        void emit(int element, int register, int spare);
    }

    /** Turns rows in as many registers as a vector has lanes, from 0 on, to columns. */
    static void transpose(Assembler code, Column column) {
        int lanes = code.width().lanes();
        for (int group = 0; group < lanes / GROUP; group++) {
            transposeParts(code, group * GROUP, lanes);
        }
        for (int j = 0; j < GROUP; j++) {
            columns(code, j, lanes);
            for (int part = 0; part < lanes / GROUP; part++) {
                column.emit(part * GROUP + j, lanes + part, j);
            }
        }
    }

    /**
     * Turns each part of 128 bits of four rows, in registers from {@code rows} on: element j of the four is in register j of these. Four
     * registers from {@code spare} on are lost.
     */
    static void transposeParts(Assembler code, int rows, int spare) {
        code.op(Binary.INTERLEAVE_LOW, spare, rows, rows + 1);
        code.op(Binary.INTERLEAVE_HIGH, spare + 1, rows, rows + 1);
        code.op(Binary.INTERLEAVE_LOW, spare + 2, rows + 2, rows + 3);
        code.op(Binary.INTERLEAVE_HIGH, spare + 3, rows + 2, rows + 3);
        code.pairs(rows, spare, spare + 2, 0);
        code.pairs(rows + 1, spare, spare + 2, 2);
        code.pairs(rows + 2, spare + 1, spare + 3, 0);
        code.pairs(rows + 3, spare + 1, spare + 3, 2);
    }

    /** Column j of each part from all groups, into registers from {@code lanes} on, in the order of the parts. */
    private static void columns(Assembler code, int j, int lanes) {
        if (code.width() == Width.YMM) {
            code.everyOtherPart(lanes, j, GROUP + j, 0);
            code.everyOtherPart(lanes + 1, j, GROUP + j, 1);
            return;
        }
        int spare = lanes + GROUP;
        for (int first = 0; first < 2; first++) {
            code.everyOtherPart(spare + first, j, GROUP + j, first);
            code.everyOtherPart(spare + 2 + first, 2 * GROUP + j, 3 * GROUP + j, first);
        }
        for (int first = 0; first < 2; first++) {
            code.everyOtherPart(lanes + first, spare + first, spare + 2 + first, 0);
            code.everyOtherPart(lanes + 2 + first, spare + first, spare + 2 + first, 1);
        }
    }

    /**
     * {@code (from, stride, to, panel stride, panels, positions)}: values of neighbouring positions as panels of fp32, {@code
     * to[panel][position][element]}.
     */
    static byte[] values(Width width, DType dtype) {
        Assembler code = new Assembler(width);
        int vector = width.lanes() * dtype.bytes();
        code.push(Assembler.Reg.RBX);
        ElementCode elements = new ElementCode(code, dtype, Assembler.Reg.RBX, ProductCode.VECTORS);
        Label panels = code.label();
        code.bind(panels);
        code.move(RAX, RDI);
        code.move(R10, RDX);
        code.move(R11, R9);
        Label positions = code.label();
        code.bind(positions);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            elements.load(i, at(RAX, i * vector));
            code.store(at(R10, i * width.bytes()), i);
        }
        code.add(RAX, RSI);
        code.add(R10, ProductCode.VECTORS * width.bytes());
        code.subtract(R11, 1);
        code.jump(Condition.NOT_EQUAL, positions);
        code.add(RDI, ProductCode.VECTORS * vector);
        code.add(RDX, RCX);
        code.subtract(R8, 1);
        code.jump(Condition.NOT_EQUAL, panels);
        code.pop(Assembler.Reg.RBX);
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (scores, tile stride, tiles, weights, weight stride, queries, state, factors)}: adds scores, tiles of
     * {@code [query][position]}, of whole panels. Two to their power becomes the weights, {@code [query][position]} of all tiles; the
     * state, each query's largest score, grows; each query's factor is the number to multiply its sums by.
     */
    static byte[] softmax(Width width) {
        Assembler code = new Assembler(width);
        int vector = width.bytes();
        int row = ProductCode.VECTORS * vector;
        Assembler.Reg state = Assembler.Reg.R12;
        Assembler.Reg factors = Assembler.Reg.R13;
        code.push(state);
        code.push(factors);
        code.load(state, at(Assembler.Reg.RSP, 3 * Long.BYTES));
        code.load(factors, at(Assembler.Reg.RSP, 4 * Long.BYTES));
        PowerOfTwo power = new PowerOfTwo(code, RAX, 4, 5, 6);
        power.begin();
        int largest = 0;
        int before = 1;
        int spare = 2;
        Label queries = code.label();
        code.bind(queries);
        code.op(Unary.BROADCAST, before, at(state, 0));
        code.op(Unary.LOAD, largest, before);
        code.move(R10, RDI);
        code.move(R11, RDX);
        Label maxima = code.label();
        code.bind(maxima);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.op(Binary.MAX, largest, largest, at(R10, i * vector));
        }
        code.add(R10, RSI);
        code.subtract(R11, 1);
        code.jump(Condition.NOT_EQUAL, maxima);
        code.largestLane(largest, spare);
        code.op(Unary.BROADCAST, largest, largest);
        code.store(at(state, 0), largest);
        code.op(Binary.SUB, before, before, largest);
        power.of(before);
        code.store(at(factors, 0), before);
        code.push(RCX);
        code.move(R10, RDI);
        code.move(R11, RDX);
        Label weights = code.label();
        code.bind(weights);
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.load(spare, at(R10, i * vector));
            code.op(Binary.SUB, spare, spare, largest);
            power.of(spare);
            code.store(at(RCX, i * vector), spare);
        }
        code.add(R10, RSI);
        code.add(RCX, row);
        code.subtract(R11, 1);
        code.jump(Condition.NOT_EQUAL, weights);
        code.pop(RCX);
        code.add(RDI, row);
        code.add(RCX, R8);
        code.add(state, STATE);
        code.add(factors, STATE);
        code.subtract(R9, 1);
        code.jump(Condition.NOT_EQUAL, queries);
        code.pop(factors);
        code.pop(state);
        code.returnFromVectors();
        return code.code();
    }

    /**
     * {@code (weights, weight stride, positions, sums, factors, groups)}: multiplies the sums by the factors and adds the weights, one
     * position after the other, for groups of {@link #SUMS} queries.
     */
    static byte[] sums(Width width) {
        Assembler code = new Assembler(width);
        Label groups = code.label();
        code.bind(groups);
        for (int i = 0; i < SUMS; i++) {
            code.load(i, at(RCX, i * STATE));
            code.firstLane(Binary.MUL, i, i, at(R8, i * STATE));
        }
        code.move(RAX, RDI);
        code.add(RDI, RSI);
        code.move(R10, RDI);
        code.add(RDI, RSI);
        code.add(RDI, RSI);
        code.move(R11, RDX);
        Label positions = code.label();
        code.bind(positions);
        code.firstLane(Binary.ADD, 0, 0, at(RAX, 0));
        code.firstLane(Binary.ADD, 1, 1, at(R10, 0));
        code.firstLane(Binary.ADD, 2, 2, at(RAX, RSI, 2, 0));
        code.firstLane(Binary.ADD, 3, 3, at(R10, RSI, 2, 0));
        code.add(RAX, Float.BYTES);
        code.add(R10, Float.BYTES);
        code.subtract(R11, 1);
        code.jump(Condition.NOT_EQUAL, positions);
        code.add(RDI, RSI);
        for (int i = 0; i < SUMS; i++) {
            code.store(at(RCX, i * STATE), i);
        }
        code.add(RCX, SUMS * STATE);
        code.add(R8, SUMS * STATE);
        code.subtract(R9, 1);
        code.jump(Condition.NOT_EQUAL, groups);
        code.returnFromVectors();
        return code.code();
    }

    /** {@code (tile, factors, rows)}: multiplies each row of a tile by its factor. */
    static byte[] scaleRows(Width width) {
        Assembler code = new Assembler(width);
        Label rows = code.label();
        code.bind(rows);
        code.op(Unary.BROADCAST, 0, at(RSI, 0));
        for (int i = 0; i < ProductCode.VECTORS; i++) {
            code.op(Binary.MUL, 1 + i, 0, at(RDI, i * width.bytes()));
            code.store(at(RDI, i * width.bytes()), 1 + i);
        }
        code.add(RDI, ProductCode.VECTORS * width.bytes());
        code.add(RSI, STATE);
        code.subtract(RDX, 1);
        code.jump(Condition.NOT_EQUAL, rows);
        code.returnFromVectors();
        return code.code();
    }
}
