package baton.memory;

import static baton.memory.Assembler.Mem.at;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.memory.Assembler.Binary;
import baton.memory.Assembler.Condition;
import baton.memory.Assembler.Label;
import baton.memory.Assembler.Reg;
import baton.memory.Assembler.Unary;
import baton.memory.Assembler.Width;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.HexFormat;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Encodings are those that GNU's assembler makes of the same instructions, with offsets of 32 bits. */
class AssemblerTest {
    private static String hex(Width width, Consumer<Assembler> instructions) {
        Assembler code = new Assembler(width);
        instructions.accept(code);
        return HexFormat.of().formatHex(code.code());
    }

    @Test
    void integers() {
        assertThat(hex(Width.YMM, code -> code.move(Reg.R10, Reg.RDI))).isEqualTo("4989fa");
        assertThat(hex(Width.YMM, code -> code.add(Reg.R12, 64))).isEqualTo("4981c440000000");
        assertThat(hex(Width.YMM, code -> code.load(Reg.RAX, at(Reg.RSP, 8)))).isEqualTo("488b842408000000");
        assertThat(hex(Width.YMM, code -> code.address(Reg.R11, at(Reg.RAX, Reg.R9, 2, 0))))
                .isEqualTo("4e8d9c4800000000");
        assertThat(hex(Width.YMM, code -> code.push(Reg.R12))).isEqualTo("4154");
    }

    @Test
    void vectorsOf256Bits() {
        assertThat(hex(Width.YMM, code -> code.op(Binary.FMA, 1, 14, 13))).isEqualTo("c4c20db8cd");
        assertThat(hex(Width.YMM, code -> code.load(12, at(Reg.R12, 32)))).isEqualTo("c4417c10a42420000000");
        assertThat(hex(Width.YMM, code -> code.op(Unary.BROADCAST, 14, at(Reg.RAX, Reg.RSI, 2, 4))))
                .isEqualTo("c4627d18b47004000000");
    }

    @Test
    void vectorsOf512Bits() {
        assertThat(hex(Width.ZMM, code -> code.op(Binary.FMA, 1, 30, 29))).isEqualTo("62920d40b8cd");
        assertThat(hex(Width.ZMM, code -> code.op(Binary.AND_BITS, 29, 28, 31))).isEqualTo("62011d40dbef");
        assertThat(hex(Width.ZMM, code -> code.shiftLeft(28, 28, 16))).isEqualTo("62911d4072f410");
        assertThat(hex(Width.ZMM, code -> code.load(28, at(Reg.R12, 0)))).isEqualTo("62417c4810a42400000000");
        assertThat(hex(Width.ZMM, code -> code.op(Unary.BROADCAST, 30, at(Reg.RAX, 0))))
                .isEqualTo("62627d4818b000000000");
    }

    @Test
    void partsOf128Bits() {
        assertThat(hex(Width.ZMM, code -> code.op(Unary.BROADCAST_PART, 17, at(Reg.R9, 64))))
                .isEqualTo("62c27d481a8940000000");
        assertThat(hex(Width.ZMM, code -> code.insertPart(3, 17, at(Reg.R12, Reg.RSI, 1, 128), 2)))
                .isEqualTo("62d37540189c348000000002");
        assertThat(hex(Width.ZMM, code -> code.op(Binary.INTERLEAVE_LOW_SHORTS, 2, 18, 5)))
                .isEqualTo("62f16d4061d5");
        assertThat(hex(Width.ZMM, code -> code.op(Binary.INTERLEAVE_HIGH_SHORTS, 19, 1, 30)))
                .isEqualTo("6281754869de");
    }

    @Test
    void powersOfTwo() {
        assertThat(hex(Width.ZMM, code -> code.fraction(17, 5))).isEqualTo("62e37d4856cd09");
        assertThat(hex(Width.ZMM, code -> code.op(Binary.TIMES_POWER, 1, 2, 30)))
                .isEqualTo("62926d482cce");
    }

    @Test
    void copiesAndChecksums() {
        assertThat(hex(Width.ZMM, code -> code.subtract(Reg.R10, Reg.RDI))).isEqualTo("4929fa");
        assertThat(hex(Width.ZMM, code -> code.add(Reg.RSI, at(Reg.R8, 152)))).isEqualTo("4903b098000000");
        assertThat(hex(Width.ZMM, code -> code.storeInt(at(Reg.R9, 4), Reg.RAX)))
                .isEqualTo("41898104000000");
        assertThat(hex(Width.ZMM, code -> code.crc32c(Reg.RAX, at(Reg.R8, 8)))).isEqualTo("f2490f38f18008000000");
        assertThat(hex(Width.ZMM, code -> code.storePastCaches(at(Reg.RDI, Reg.R10, 1, 0), 3)))
                .isEqualTo("62b17d48e79c1700000000");
        assertThat(hex(Width.ZMM, code -> code.firstLane(Unary.LOAD, 1, at(Reg.R9, 4))))
                .isEqualTo("c4c17a108904000000");
        assertThat(hex(Width.ZMM, code -> code.multiplyPolynomials(5, 1, 6, true)))
                .isEqualTo("62f3754844ee11");
        assertThat(hex(Width.ZMM, code -> code.xorBoth(1, 5, 3))).isEqualTo("62f3554825cb96");
        assertThat(hex(Width.YMM, code -> code.storePastCaches(at(Reg.RDI, Reg.R10, 1, 32), 13)))
                .isEqualTo("c4217de7ac1720000000");
        assertThat(hex(Width.XMM, code -> code.multiplyPolynomials(12, 8, 0, false)))
                .isEqualTo("c4633944e000");
        assertThat(hex(Width.ZMM, Assembler::fenceStores)).isEqualTo("0faef8");
    }

    @Test
    void tiles() {
        assertThat(hex(Width.ZMM, code -> code.configureTiles(at(Reg.RAX, 64)))).isEqualTo("c4e278498040000000");
        assertThat(hex(Width.ZMM, Assembler::releaseTiles)).isEqualTo("c4e27849c0");
        assertThat(hex(Width.ZMM, code -> code.clearTile(3))).isEqualTo("c4e27b49d8");
        assertThat(hex(Width.ZMM, code -> code.loadTile(7, at(Reg.RBX, Reg.R10, 1, 64))))
                .isEqualTo("c4a27b4bbc1340000000");
        assertThat(hex(Width.ZMM, code -> code.loadTile(5, at(Reg.R12, Reg.RSI, 1, 0))))
                .isEqualTo("c4c27b4bac3400000000");
        assertThat(hex(Width.ZMM, code -> code.storeTile(at(Reg.R8, Reg.R10, 1, 2048), 2)))
                .isEqualTo("c4827a4b941000080000");
        assertThat(hex(Width.ZMM, code -> code.multiplyTiles(3, 5, 7))).isEqualTo("c4e2425cdd");
        assertThat(hex(Width.ZMM, code -> code.permuteShorts(2, 30, 17))).isEqualTo("62b28d408dd1");
    }

    @Test
    void registersThatTheWidthLacksAreRefused() {
        assertThatThrownBy(() -> new Assembler(Width.YMM).op(Binary.ADD, 16, 1, 2))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("ZMM");
    }

    /** Adds the numbers from 1 to n. */
    @Test
    void codeWithJumpsRuns() throws Throwable {
        requireProcessor(Width.YMM);
        Assembler code = new Assembler(Width.YMM);
        Label loop = code.label();
        Label end = code.label();
        code.move(Reg.RAX, 0L);
        code.bind(loop);
        code.compare(Reg.RDI, 0);
        code.jump(Condition.EQUAL, end);
        code.add(Reg.RAX, Reg.RDI);
        code.subtract(Reg.RDI, 1);
        code.jump(loop);
        code.bind(end);
        code.returnFromVectors();
        long sum = (long)
                MachineCode.function(code.code(), FunctionDescriptor.of(ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG))
                        .invokeExact(100L);
        assertThat(sum).isEqualTo(5050);
    }

    /** The called one is longer than the code has room for at first. */
    @Test
    void aFunctionCallsAnotherThatIsAppended() throws Throwable {
        requireProcessor(Width.YMM);
        Assembler added = new Assembler(Width.YMM);
        for (int i = 0; i < 5_000; i++) {
            added.add(Reg.RDI, 1);
        }
        added.returnFromVectors();
        Assembler code = new Assembler(Width.YMM);
        Label function = code.label();
        code.call(function);
        code.call(function);
        code.move(Reg.RAX, Reg.RDI);
        code.returnFromVectors();
        code.bind(function);
        code.append(added.code());
        long sum = (long)
                MachineCode.function(code.code(), FunctionDescriptor.of(ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG))
                        .invokeExact(7L);
        assertThat(sum).isEqualTo(10_007);
    }

    private static void requireProcessor(Width width) {
        String needed = width == Width.ZMM ? "avx512dq" : "avx2";
        assumeTrue(Processor.current().has(needed), () -> "the processor lacks " + needed);
    }

    /** A function that replaces a vector's first lane by the result of code for all lanes; skips the test without such vectors. */
    private static MethodHandle ofLanes(Width width, Consumer<Assembler> emit) {
        requireProcessor(width);
        Assembler code = new Assembler(width);
        code.load(3, at(Reg.RDI, 0));
        emit.accept(code);
        code.store(at(Reg.RDI, 0), 3);
        code.returnFromVectors();
        return MachineCode.function(code.code(), FunctionDescriptor.ofVoid(ValueLayout.JAVA_LONG));
    }

    @ParameterizedTest
    @EnumSource
    void theLargestLaneIsFoundInEveryWidth(Width width) throws Throwable {
        MethodHandle largest = ofLanes(width, code -> code.largestLane(3, 4));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(64, 64);
            for (int place = 0; place < width.lanes(); place++) {
                for (int i = 0; i < width.lanes(); i++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, i, i == place ? 5 : -i);
                }
                largest.invokeExact(memory.address());
                assertThat(memory.get(ValueLayout.JAVA_FLOAT, 0))
                        .as("lane %d", place)
                        .isEqualTo(5);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void lanesAreSummedInEveryWidth(Width width) throws Throwable {
        MethodHandle sum = ofLanes(width, code -> code.sumLanes(3, 4));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(64, 64);
            int expected = 0;
            for (int i = 0; i < width.lanes(); i++) {
                memory.setAtIndex(ValueLayout.JAVA_FLOAT, i, i + 1);
                expected += i + 1;
            }
            sum.invokeExact(memory.address());
            assertThat(memory.get(ValueLayout.JAVA_FLOAT, 0)).isEqualTo(expected);
        }
    }
}
