package baton.memory;

import baton.memory.Assembler.Label;
import baton.memory.Assembler.Mem;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Width;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Encodes x86-64 instructions as bytes: prefixes (REX, VEX, EVEX), opcode, ModRM, SIB, distance and number.
 *
 * @see <a href="https://www.intel.com/sdm">Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2</a>
 */
abstract sealed class InstructionEncoder permits Assembler {
    enum Prefix {
        NONE(0),
        P66(1),
        F3(2),
        F2(3);

        final int bits;

        Prefix(int bits) {
            this.bits = bits;
        }
    }

    /** The maps of opcodes. */
    enum Map {
        M0F(1),
        M0F38(2),
        M0F3A(3);

        final int bits;

        Map(int bits) {
            this.bits = bits;
        }
    }

    private ByteBuffer code = ByteBuffer.allocate(4096).order(ByteOrder.LITTLE_ENDIAN);

    /** The code so far. */
    public final byte[] code() {
        return Arrays.copyOf(code.array(), code.position());
    }

    /** The label stands for the next instruction. */
    public final void bind(Label label) {
        label.place = code.position();
        for (int jump : label.jumps) {
            code.putInt(jump, label.place - (jump + Integer.BYTES));
        }
    }

    /** The code of a function, which may lie anywhere. */
    public final void append(byte[] function) {
        room(function.length);
        code.put(function);
    }

    final void withRegister(Width wide, Prefix prefix, Map map, int opcode, int register, int second, int other) {
        if (wide == Width.ZMM) {
            evex(prefix, map, false, register, second, other >> 3 & 1, other >> 4 & 1, 2);
        } else {
            vex(wide, prefix, map, false, register, second, 0, other >> 3);
        }
        bytes(opcode, 0xc0 | (register & 7) << 3 | other & 7);
    }

    final void withMemory(Width wide, Prefix prefix, Map map, int opcode, int register, int second, Mem memory) {
        if (wide == Width.ZMM) {
            evexMemory(prefix, map, false, register, second, memory);
        } else {
            vex(wide, prefix, map, false, register, second, indexBit(memory), memory.base().number >> 3);
        }
        bytes(opcode);
        memory(register, memory);
    }

    final void evexMemory(Prefix prefix, Map map, boolean w, int register, int second, Mem memory) {
        evex(prefix, map, w, register, second, memory.base().number >> 3, indexBit(memory), 2);
    }

    /** Three bytes; bits of registers are inverted. */
    final void vex(Width wide, Prefix prefix, Map map, boolean w, int register, int second, int x, int b) {
        if ((register | second) > 15) {
            throw new IllegalArgumentException("vector register " + (register | second) + " needs " + Width.ZMM);
        }
        bytes(
                0xc4,
                (register >> 3 ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | map.bits,
                (w ? 0x80 : 0) | (~second & 15) << 3 | wide.length << 2 | prefix.bits);
    }

    /** Four bytes, without a mask; bits of registers are inverted. */
    final void evex(Prefix prefix, Map map, boolean w, int register, int second, int b, int x, int length) {
        bytes(
                0x62,
                (register >> 3 & 1 ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (register >> 4 ^ 1) << 4 | map.bits,
                (w ? 0x80 : 0) | (~second & 15) << 3 | 4 | prefix.bits,
                length << 5 | (second >> 4 ^ 1) << 3);
    }

    static int indexBit(Mem memory) {
        return memory.scale() == 0 ? 0 : memory.index().number >> 3;
    }

    final void integerWithMemory(int opcode, Reg register, Mem memory) {
        bytes(0x48 | register.number >> 3 << 2 | indexBit(memory) << 1 | memory.base().number >> 3, opcode);
        memory(register.number, memory);
    }

    final void withNumber(int operation, Reg register, int number) {
        bytes(0x48 | register.number >> 3, 0x81, operation | register.number & 7);
        number(number);
    }

    final void registers(int opcode, Reg to, Reg from) {
        bytes(0x48 | from.number >> 3 << 2 | to.number >> 3, opcode, 0xc0 | (from.number & 7) << 3 | to.number & 7);
    }

    final void optionalRex(Reg register) {
        if (register.number > 7) {
            bytes(0x41);
        }
    }

    /** ModRM, SIB where it is needed, and an offset of 32 bits, which EVEX does not scale. */
    final void memory(int register, Mem memory) {
        int base = memory.base().number & 7;
        if (memory.scale() == 0 && base != Reg.RSP.number) {
            bytes(0x80 | (register & 7) << 3 | base);
        } else {
            int index = memory.scale() == 0 ? Reg.RSP.number : memory.index().number & 7;
            int scale = memory.scale() == 0 ? 0 : Integer.numberOfTrailingZeros(memory.scale());
            bytes(0x80 | (register & 7) << 3 | Reg.RSP.number, scale << 6 | index << 3 | base);
        }
        number(memory.offset());
    }

    final void distance(Label to) {
        if (to.place < 0) {
            to.jumps.add(code.position());
            number(0);
        } else {
            number(to.place - (code.position() + Integer.BYTES));
        }
    }

    final void bytes(int... values) {
        room(values.length);
        for (int value : values) {
            code.put((byte) value);
        }
    }

    final void number(int value) {
        room(Integer.BYTES);
        code.putInt(value);
    }

    final void wideNumber(long value) {
        room(Long.BYTES);
        code.putLong(value);
    }

    private void room(int more) {
        if (code.remaining() < more) {
            code = ByteBuffer.allocate(Math.max(2 * code.capacity(), code.position() + more))
                    .order(ByteOrder.LITTLE_ENDIAN)
                    .put(code.flip());
        }
    }
}
