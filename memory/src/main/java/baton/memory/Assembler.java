package baton.memory;

import java.util.ArrayList;
import java.util.List;

/**
 * Emits x86-64 machine code: the few integer instructions that loops take, and instructions on vectors of one width, which is VEX
 * code (AVX2, FMA) for 128 and 256 bits and EVEX code (AVX-512F and, where it is said, more) for 512. Both have the same opcodes, so that one generator serves
 * all widths. Vectors are registers 0 to 15, or 0 to 31 with 512 bits.
 *
 * <p>Functions follow the System V calling convention: arguments in RDI, RSI, RDX, RCX, R8, R9, then on the stack.
 *
 * @see <a href="https://www.intel.com/sdm">Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2</a>
 */
public final class Assembler extends InstructionEncoder {
    /** Bits of a vector register. */
    public enum Width {
        XMM(4, 0),
        YMM(8, 1),
        ZMM(16, 2);

        private final int lanes;
        final int length;

        Width(int lanes, int length) {
            this.lanes = lanes;
            this.length = length;
        }

        /** Numbers of 32 bits in a vector. */
        public int lanes() {
            return lanes;
        }

        public int bytes() {
            return lanes * Float.BYTES;
        }

        /** Vector registers that there are. */
        public int registers() {
            return this == ZMM ? 32 : 16;
        }
    }

    /** General registers. */
    public enum Reg {
        RAX(0),
        RCX(1),
        RDX(2),
        RBX(3),
        RSP(4),
        RBP(5),
        RSI(6),
        RDI(7),
        R8(8),
        R9(9),
        R10(10),
        R11(11),
        R12(12),
        R13(13),
        R14(14),
        R15(15);

        final int number;

        Reg(int number) {
            this.number = number;
        }
    }

    /** The address {@code base + index * scale + offset}; a scale of 0 means no index. */
    public record Mem(Reg base, Reg index, int scale, int offset) {
        public static Mem at(Reg base, int offset) {
            return new Mem(base, Reg.RSP, 0, offset);
        }

        /** @param scale 1, 2, 4 or 8 */
        public static Mem at(Reg base, Reg index, int scale, int offset) {
            if (index == Reg.RSP) {
                throw new IllegalArgumentException("RSP is no index");
            }
            return new Mem(base, index, scale, offset);
        }
    }

    /** Instructions on vectors with two sources, the second of which may be memory. */
    public enum Binary {
        ADD(Prefix.NONE, Map.M0F, 0x58),
        MUL(Prefix.NONE, Map.M0F, 0x59),
        SUB(Prefix.NONE, Map.M0F, 0x5c),
        MIN(Prefix.NONE, Map.M0F, 0x5d),
        DIV(Prefix.NONE, Map.M0F, 0x5e),
        MAX(Prefix.NONE, Map.M0F, 0x5f),
        /** Adds the product of the sources to the destination. */
        FMA(Prefix.P66, Map.M0F38, 0xb8),
        /** Subtracts the product of the sources from the destination. */
        NEGATED_FMA(Prefix.P66, Map.M0F38, 0xbc),
        /** The destination times the first source, plus the second. */
        FMA_TO_PRODUCT(Prefix.P66, Map.M0F38, 0xa8),
        AND_BITS(Prefix.P66, Map.M0F, 0xdb),
        XOR_BITS(Prefix.P66, Map.M0F, 0xef),
        ADD_INTS(Prefix.P66, Map.M0F, 0xfe),
        /** Only for {@link Width#ZMM}. */
        ADD_SHORTS(Prefix.P66, Map.M0F, 0xfd),
        /** In each 128 bits, elements 0 of both, then elements 1. */
        INTERLEAVE_LOW(Prefix.NONE, Map.M0F, 0x14),
        /** In each 128 bits, elements 2 of both, then elements 3. */
        INTERLEAVE_HIGH(Prefix.NONE, Map.M0F, 0x15),
        /** In each 128 bits, shorts 0 of both, then shorts 1 and so on up to 3. */
        INTERLEAVE_LOW_SHORTS(Prefix.P66, Map.M0F, 0x61),
        /** In each 128 bits, shorts 4 of both, then shorts 5 and so on up to 7. */
        INTERLEAVE_HIGH_SHORTS(Prefix.P66, Map.M0F, 0x69),
        /** The lower halves of both. Only for {@link Width#XMM}. */
        LOWER_HALVES(Prefix.NONE, Map.M0F, 0x16),
        /** The upper half of the second source, then that of the first. Only for {@link Width#XMM}. */
        UPPER_HALVES(Prefix.NONE, Map.M0F, 0x12),
        /** Sums of neighbours of the first source, then of the second. Only for {@link Width#XMM}. */
        ADD_NEIGHBOURS(Prefix.F2, Map.M0F, 0x7c),
        /** Adds to each lane the products of two neighbouring bf16 numbers each (AVX512_BF16). Only for {@link Width#ZMM}. */
        DOT_BF16(Prefix.F3, Map.M0F38, 0x52),
        /** fp32 to bf16, to nearest even: the second source's in the lower half (AVX512_BF16). Only for {@link Width#ZMM}. */
        NARROW_PAIR(Prefix.F2, Map.M0F38, 0x72),
        /** The first source times two to the power of the second, rounded down to an integer. Only for {@link Width#ZMM}. */
        TIMES_POWER(Prefix.P66, Map.M0F38, 0x2c),
        /** The smaller one of signed ints. */
        MIN_INTS(Prefix.P66, Map.M0F38, 0x39),
        /** Shorts below 2^8 to bytes, of 128 bits each those of the first source, then of the second. Not for {@link Width#ZMM}. */
        PACK_BYTES(Prefix.P66, Map.M0F, 0x67),
        /** Ints below 2^16 to shorts, of 128 bits each those of the first source, then of the second. Not for {@link Width#ZMM}. */
        PACK_SHORTS(Prefix.P66, Map.M0F38, 0x2b);

        private final Prefix prefix;
        private final Map map;
        private final int opcode;

        Binary(Prefix prefix, Map map, int opcode) {
            this.prefix = prefix;
            this.map = map;
            this.opcode = opcode;
        }
    }

    /** Instructions on vectors with one source, which may be memory. */
    public enum Unary {
        LOAD(Prefix.NONE, Map.M0F, 0x10),
        /** The fp32 number in memory, or the first of a register, in every lane. */
        BROADCAST(Prefix.P66, Map.M0F38, 0x18),
        /** The 128 bits in memory, in every part of a vector. Not for {@link Width#XMM}. */
        BROADCAST_PART(Prefix.P66, Map.M0F38, 0x1a),
        /** Ints to fp32. */
        TO_FLOATS(Prefix.NONE, Map.M0F, 0x5b),
        /** fp32 to ints, rounded to nearest even. */
        TO_INTS(Prefix.P66, Map.M0F, 0x5b),
        /** Signed bytes to ints: reads a quarter of a vector. */
        BYTES_TO_INTS(Prefix.P66, Map.M0F38, 0x21),
        /** Unsigned shorts to ints: reads half a vector. */
        SHORTS_TO_INTS(Prefix.P66, Map.M0F38, 0x33),
        /** fp16 to fp32: reads half a vector (F16C). */
        HALVES_TO_FLOATS(Prefix.P66, Map.M0F38, 0x13),
        SQRT(Prefix.NONE, Map.M0F, 0x51);

        private final Prefix prefix;
        private final Map map;
        private final int opcode;

        Unary(Prefix prefix, Map map, int opcode) {
            this.prefix = prefix;
            this.map = map;
            this.opcode = opcode;
        }
    }

    /** Conditions after a comparison of signed integers. */
    public enum Condition {
        EQUAL(0x84),
        NOT_EQUAL(0x85),
        LESS(0x8c),
        NOT_LESS(0x8d),
        NOT_GREATER(0x8e);

        private final int opcode;

        Condition(int opcode) {
            this.opcode = opcode;
        }
    }

    /** A place in the code, to jump to. */
    public static final class Label {
        int place = -1;
        final List<Integer> jumps = new ArrayList<>();

        private Label() {}
    }

    private final Width width;

    /** @param width of the vectors */
    public Assembler(Width width) {
        this.width = width;
    }

    public Width width() {
        return width;
    }

    public void push(Reg register) {
        optionalRex(register);
        bytes(0x50 | register.number & 7);
    }

    public void pop(Reg register) {
        optionalRex(register);
        bytes(0x58 | register.number & 7);
    }

    public void move(Reg to, Reg from) {
        registers(0x89, to, from);
    }

    public void move(Reg to, long number) {
        bytes(0x48 | to.number >> 3, 0xb8 | to.number & 7);
        wideNumber(number);
    }

    public void load(Reg to, Mem from) {
        integerWithMemory(0x8b, to, from);
    }

    /** Stores the lower 32 bits. */
    public void storeInt(Mem to, Reg from) {
        bytes(0x40 | from.number >> 3 << 2 | indexBit(to) << 1 | to.base.number >> 3, 0x89);
        memory(from.number, to);
    }

    /** Takes 8 bytes into a CRC32C (SSE4.2). */
    public void crc32c(Reg crc, Mem data) {
        bytes(0xf2, 0x48 | crc.number >> 3 << 2 | indexBit(data) << 1 | data.base.number >> 3, 0x0f, 0x38, 0xf1);
        memory(crc.number, data);
    }

    /** The address itself. */
    public void address(Reg to, Mem of) {
        integerWithMemory(0x8d, to, of);
    }

    public void add(Reg to, Reg what) {
        registers(0x01, to, what);
    }

    public void add(Reg to, Mem what) {
        integerWithMemory(0x03, to, what);
    }

    public void add(Reg to, int number) {
        withNumber(0xc0, to, number);
    }

    public void subtract(Reg from, Reg what) {
        registers(0x29, from, what);
    }

    public void subtract(Reg from, int number) {
        withNumber(0xe8, from, number);
    }

    public void compare(Reg register, int number) {
        withNumber(0xf8, register, number);
    }

    public void shiftLeft(Reg register, int bits) {
        bytes(0x48 | register.number >> 3, 0xc1, 0xe0 | register.number & 7, bits);
    }

    public void shiftRight(Reg register, int bits) {
        bytes(0x48 | register.number >> 3, 0xc1, 0xe8 | register.number & 7, bits);
    }

    /** Fetches the line into all caches. */
    public void prefetch(Mem line) {
        prefetch(1, line);
    }

    /** Fetches the line into the second cache, so that it takes no room in the first one. */
    public void prefetchToSecondCache(Mem line) {
        prefetch(2, line);
    }

    private void prefetch(int hint, Mem line) {
        int rex = 0x40 | indexBit(line) << 1 | line.base.number >> 3;
        bytes(rex, 0x0f, 0x18);
        memory(hint, line);
    }

    public Label label() {
        return new Label();
    }

    public void jump(Label to) {
        bytes(0xe9);
        distance(to);
    }

    /** Calls the function that begins at a label. */
    public void call(Label function) {
        bytes(0xe8);
        distance(function);
    }

    public void jump(Condition condition, Label to) {
        bytes(0x0f, condition.opcode);
        distance(to);
    }

    /** Ends a function that used vectors. */
    public void returnFromVectors() {
        bytes(0xc5, 0xf8, 0x77); // vzeroupper
        bytes(0xc3);
    }

    /** Emits the body in a loop that runs so many times, at least once; {@code count} is 0 behind it. */
    public void loop(Reg count, Runnable body) {
        Label loop = label();
        bind(loop);
        body.run();
        subtract(count, 1);
        jump(Condition.NOT_EQUAL, loop);
    }

    public void op(Binary binary, int to, int one, int other) {
        withRegister(width, binary.prefix, binary.map, binary.opcode, to, one, other);
    }

    public void op(Binary binary, int to, int one, Mem other) {
        withMemory(width, binary.prefix, binary.map, binary.opcode, to, one, other);
    }

    public void op(Unary unary, int to, int from) {
        withRegister(width, unary.prefix, unary.map, unary.opcode, to, 0, from);
    }

    public void op(Unary unary, int to, Mem from) {
        withMemory(width, unary.prefix, unary.map, unary.opcode, to, 0, from);
    }

    /** The first lane alone; the others are undefined. */
    public void firstLane(Binary binary, int to, int one, int other) {
        withRegister(Width.XMM, Prefix.F3, binary.map, binary.opcode, to, one, other);
    }

    public void firstLane(Binary binary, int to, int one, Mem other) {
        withMemory(Width.XMM, Prefix.F3, binary.map, binary.opcode, to, one, other);
    }

    public void firstLane(Unary unary, int to, int from) {
        withRegister(Width.XMM, Prefix.F3, unary.map, unary.opcode, to, to, from);
    }

    /** The first lane alone; the others become zero. */
    public void firstLane(Unary unary, int to, Mem from) {
        withMemory(Width.XMM, Prefix.F3, unary.map, unary.opcode, to, 0, from);
    }

    public void load(int to, Mem from) {
        op(Unary.LOAD, to, from);
    }

    public void store(Mem to, int from) {
        withMemory(width, Prefix.NONE, Map.M0F, 0x11, from, 0, to);
    }

    /** Stores without a place in the caches; the address is a multiple of a vector's bytes. */
    public void storePastCaches(Mem to, int from) {
        withMemory(width, Prefix.P66, Map.M0F, 0xe7, from, 0, to); // vmovntdq
    }

    /** Stores before it are seen before those behind it. */
    public void fenceStores() {
        bytes(0x0f, 0xae, 0xf8); // sfence
    }

    /** Changes the bits of {@code to} that one of the two others has, and not both. Only for {@link Width#ZMM}. */
    public void xorBoth(int to, int one, int other) {
        require(Width.ZMM);
        withRegister(width, Prefix.P66, Map.M0F3A, 0x25, to, one, other); // vpternlogd
        bytes(0x96);
    }

    /** Multiplies, in each 128 bits, the sources' lower or upper halves as polynomials over bits (PCLMULQDQ, VPCLMULQDQ). */
    public void multiplyPolynomials(int to, int one, int other, boolean upper) {
        withRegister(width, Prefix.P66, Map.M0F3A, 0x44, to, one, other);
        bytes(upper ? 0x11 : 0x00);
    }

    public void clear(int register) {
        op(Binary.XOR_BITS, register, register, register);
    }

    public void shiftLeft(int to, int from, int bits) {
        withRegister(width, Prefix.P66, Map.M0F, 0x72, 6, to, from);
        bytes(bits);
    }

    /** Zeros come from the left. */
    public void shiftRight(int to, int from, int bits) {
        withRegister(width, Prefix.P66, Map.M0F, 0x72, 2, to, from);
        bytes(bits);
    }

    /** Shifts each 16 bits; zeros come from the left. */
    public void shiftShortsRight(int to, int from, int bits) {
        withRegister(width, Prefix.P66, Map.M0F, 0x71, 2, to, from);
        bytes(bits);
    }

    /** Takes, in each 128 bits, elements {@code a} and {@code a + 1} of both, {@code a} being 0 or 2. */
    public void pairs(int to, int one, int other, int a) {
        withRegister(width, Prefix.NONE, Map.M0F, 0xc6, to, one, other); // vshufps
        bytes(a == 0 ? 0x44 : 0xee);
    }

    /**
     * Of the 128-bit parts of both sources, every other one from part {@code first} on: of 512 bits two of each, of 256 bits one of each.
     * Not for {@link Width#XMM}.
     */
    public void everyOtherPart(int to, int one, int other, int first) {
        switch (width) {
            case ZMM -> {
                withRegister(width, Prefix.P66, Map.M0F3A, 0x23, to, one, other); // vshuff32x4
                bytes(first == 0 ? 0x88 : 0xdd);
            }
            case YMM -> {
                withRegister(width, Prefix.P66, Map.M0F3A, 0x06, to, one, other); // vperm2f128
                bytes(first == 0 ? 0x20 : 0x31);
            }
            case XMM -> throw new IllegalArgumentException(width + " has one part");
        }
    }

    /** {@code from} with the 128 bits in memory as the part of this number. Only for {@link Width#ZMM}. */
    public void insertPart(int to, int from, Mem memory, int part) {
        require(Width.ZMM);
        withMemory(width, Prefix.P66, Map.M0F3A, 0x18, to, from, memory); // vinsertf32x4
        bytes(part);
    }

    /** Into the first lane the largest of all lanes; {@code register} and {@code spare} are lost. Both are below 16. */
    public void largestLane(int register, int spare) {
        toQuarter(Binary.MAX, register, spare);
        withRegister(Width.XMM, Prefix.NONE, Map.M0F, Binary.UPPER_HALVES.opcode, spare, register, register);
        withRegister(Width.XMM, Prefix.NONE, Map.M0F, Binary.MAX.opcode, register, register, spare);
        withRegister(Width.XMM, Prefix.NONE, Map.M0F, Binary.INTERLEAVE_LOW.opcode, spare, register, register);
        withRegister(Width.XMM, Prefix.NONE, Map.M0F, Binary.UPPER_HALVES.opcode, spare, spare, spare);
        withRegister(Width.XMM, Prefix.NONE, Map.M0F, Binary.MAX.opcode, register, register, spare);
    }

    /** Into the first lane the sum of all lanes; {@code register} and {@code spare} are lost. Both are below 16. */
    public void sumLanes(int register, int spare) {
        toQuarter(Binary.ADD, register, spare);
        for (int i = 0; i < 2; i++) {
            withRegister(Width.XMM, Prefix.F2, Map.M0F, Binary.ADD_NEIGHBOURS.opcode, register, register, register);
        }
    }

    /** Into the first four lanes the result of all lanes, four by four. */
    private void toQuarter(Binary binary, int register, int spare) {
        if (width == Width.ZMM) {
            evex(Prefix.P66, Map.M0F3A, true, register, 0, spare >> 3 & 1, spare >> 4 & 1, 2);
            bytes(0x1b, 0xc0 | (register & 7) << 3 | spare & 7, 1); // vextractf64x4
            withRegister(Width.YMM, Prefix.NONE, Map.M0F, binary.opcode, register, register, spare);
        }
        if (width != Width.XMM) {
            vex(Width.YMM, Prefix.P66, Map.M0F3A, false, register, 0, 0, spare >> 3);
            bytes(0x19, 0xc0 | (register & 7) << 3 | spare & 7, 1); // vextractf128
            withRegister(Width.XMM, Prefix.NONE, Map.M0F, binary.opcode, register, register, spare);
        }
    }

    /** Stores the lower 16 bits of each lane, half as many bytes as a vector has. Only for {@link Width#ZMM}. */
    public void storeShorts(Mem to, int from) {
        require(Width.ZMM);
        evexMemory(Prefix.F3, Map.M0F38, false, from, 0, to);
        bytes(0x33); // vpmovdw
        memory(from, to);
    }

    /** Stores the lower 8 bits of each lane, a quarter as many bytes as a vector has. Only for {@link Width#ZMM}. */
    public void storeBytes(Mem to, int from) {
        require(Width.ZMM);
        evexMemory(Prefix.F3, Map.M0F38, false, from, 0, to);
        bytes(0x31); // vpmovdb
        memory(from, to);
    }

    /** Stores the first 128 bits. The register is below 16. */
    public void storePart(Mem to, int from) {
        withMemory(Width.XMM, Prefix.NONE, Map.M0F, 0x11, from, 0, to);
    }

    /** Signed bytes to shorts times two to a power, as many as a vector has lanes: half of it. The register is below 16, not for {@link Width#XMM}. */
    public void bytesToShorts(int to, Mem from, int power) {
        Width half = width == Width.ZMM ? Width.YMM : Width.XMM;
        withMemory(half, Prefix.P66, Map.M0F38, 0x20, to, 0, from); // vpmovsxbw
        withRegister(half, Prefix.P66, Map.M0F, 0x71, 6, to, to); // vpsllw
        bytes(power);
    }

    /** Stores fp32 as fp16, rounded to nearest even, half as many bytes as a vector has (F16C). */
    public void storeHalves(Mem to, int from) {
        withMemory(width, Prefix.P66, Map.M0F3A, 0x1d, from, 0, to); // vcvtps2ph
        bytes(0);
    }

    /** Puts the second and the third quarter of a vector in each other's place. Only for {@link Width#YMM}. */
    public void swapInnerQuarters(int to, int from) {
        require(Width.YMM);
        vex(Width.YMM, Prefix.P66, Map.M0F3A, true, to, 0, 0, from >> 3);
        bytes(0x00, 0xc0 | (to & 7) << 3 | from & 7, 0xd8); // vpermq
    }

    /** The fractional part of fp32: the number less the largest integer that is not above it (AVX512DQ). Only for {@link Width#ZMM}. */
    public void fraction(int to, int from) {
        require(Width.ZMM);
        withRegister(width, Prefix.P66, Map.M0F3A, 0x56, to, 0, from); // vreduceps
        bytes(0x09);
    }

    /** Each 16 bits of {@code from} that the 16 bits of {@code indices} name. Only for {@link Width#ZMM}. */
    public void permuteShorts(int to, int indices, int from) {
        require(Width.ZMM);
        evex(Prefix.P66, Map.M0F38, true, to, indices, from >> 3 & 1, from >> 4 & 1, 2);
        bytes(0x8d, 0xc0 | (to & 7) << 3 | from & 7); // vpermw
    }

    /** Configures the tiles by 64 bytes, see {@code LDTILECFG}, and clears them (AMX). */
    public void configureTiles(Mem configuration) {
        tileWithMemory(Prefix.NONE, 0x49, 0, configuration);
    }

    /** Ends the use of tiles: their state is not saved any more. */
    public void releaseTiles() {
        vex(Width.XMM, Prefix.NONE, Map.M0F38, false, 0, 0, 0, 0);
        bytes(0x49, 0xc0);
    }

    public void clearTile(int tile) {
        vex(Width.XMM, Prefix.F2, Map.M0F38, false, tile, 0, 0, 0);
        bytes(0x49, 0xc0 | tile << 3);
    }

    /** @param rows the address of the first row; its index, not scaled, is the distance of rows */
    public void loadTile(int tile, Mem rows) {
        tileWithMemory(Prefix.F2, 0x4b, tile, rows);
    }

    /** @param rows as of {@link #loadTile} */
    public void storeTile(Mem rows, int tile) {
        tileWithMemory(Prefix.F3, 0x4b, tile, rows);
    }

    /**
     * {@code sums[m][n] += sum over k of rows[m][k] * columns[k / 2][n][k % 2]}, of fp32 and of bf16 (AMX-BF16): within an instruction
     * even and odd k are summed apart.
     */
    public void multiplyTiles(int sums, int rows, int columns) {
        vex(Width.XMM, Prefix.F3, Map.M0F38, false, sums, columns, 0, 0);
        bytes(0x5c, 0xc0 | sums << 3 | rows);
    }

    private void tileWithMemory(Prefix prefix, int opcode, int tile, Mem memory) {
        vex(Width.XMM, prefix, Map.M0F38, false, tile, 0, indexBit(memory), memory.base.number >> 3);
        bytes(opcode);
        memory(tile, memory);
    }

    private void require(Width needed) {
        if (width != needed) {
            throw new IllegalArgumentException(width + " has no such instruction, " + needed + " has");
        }
    }
}
