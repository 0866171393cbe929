package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Orders of vLLM's pages. Each element is a number made of its token, head, dimension, and of whether it is a key's or a value's. */
class PageRearrangementTest {
    private static final KvLayout LAYOUT = new KvLayout(1, 3, 32, 64, DType.F32);
    private static final int DIMS = LAYOUT.headDim();
    private static final int SIZE = LAYOUT.blockSize();

    /** Both halves of it tell elements apart. */
    private static int number(int head, int token, int dim, boolean value) {
        int number = ((head * SIZE + token) * DIMS + dim) * 2 + (value ? 1 : 0);
        return ~number << 16 | number;
    }

    /** Index of an element as vLLM's attention backends place it. */
    private static int index(BlockInterior interior, int head, int token, int dim, boolean value) {
        int area = head * 2 * SIZE * DIMS;
        int half = value ? SIZE * DIMS : 0;
        return switch (interior) {
            case HEADS -> area + token * 2 * DIMS + (value ? DIMS : 0) + dim;
            case TOKENS -> (token * LAYOUT.kvHeads() + head) * 2 * DIMS + (value ? DIMS : 0) + dim;
            case CPU_VEC -> area + half + (value ? token * DIMS + dim : dim * SIZE + token);
            case CPU_AMX ->
                area
                        + half
                        + (value
                                ? (dim / 16) * 16 * SIZE + (token / 2) * 32 + (dim % 16) * 2 + token % 2
                                : (token / 16) * 16 * DIMS + (dim / 2) * 32 + (token % 16) * 2 + dim % 2);
            case CPU_UNKNOWN -> throw new IllegalArgumentException();
        };
    }

    private static MemorySegment page(Arena arena, BlockInterior interior) {
        MemorySegment page = arena.allocate(LAYOUT.layerBytes(), 8);
        for (int head = 0; head < LAYOUT.kvHeads(); head++) {
            for (int token = 0; token < SIZE; token++) {
                for (int dim = 0; dim < DIMS; dim++) {
                    for (boolean value : new boolean[] {false, true}) {
                        page.setAtIndex(
                                ValueLayout.JAVA_INT,
                                index(interior, head, token, dim, value),
                                number(head, token, dim, value));
                    }
                }
            }
        }
        return page;
    }

    @ParameterizedTest
    @EnumSource(names = {"HEADS", "TOKENS", "CPU_VEC", "CPU_AMX"})
    void aPageComesIntoBatonsOrder(BlockInterior interior) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment page = page(arena, interior);
            new PageRearrangement(LAYOUT, interior).rearrange(page, 0, LAYOUT.kvHeads());
            assertThat(page.mismatch(page(arena, BlockInterior.HEADS))).isEqualTo(-1);
        }
    }

    /** Each of the four bytes of the numbers is a page of its own. */
    @ParameterizedTest
    @EnumSource(names = {"HEADS", "TOKENS", "CPU_VEC", "CPU_AMX"})
    void aPageOfBytesComesIntoBatonsOrder(BlockInterior interior) {
        KvLayout bytes = new KvLayout(1, LAYOUT.kvHeads(), DIMS, SIZE, DType.F8_E4M3);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment numbers = page(arena, interior);
            MemorySegment plain = page(arena, BlockInterior.HEADS);
            PageRearrangement rearrangement = new PageRearrangement(bytes, interior);
            for (int place = 0; place < Integer.BYTES; place++) {
                MemorySegment page = bytesOf(arena, numbers, place);
                rearrangement.rearrange(page, 0, LAYOUT.kvHeads());
                assertThat(page.mismatch(bytesOf(arena, plain, place))).isEqualTo(-1);
            }
        }
    }

    private static MemorySegment bytesOf(Arena arena, MemorySegment numbers, int place) {
        MemorySegment bytes = arena.allocate(numbers.byteSize() / Integer.BYTES);
        for (long i = 0; i < bytes.byteSize(); i++) {
            bytes.set(ValueLayout.JAVA_BYTE, i, numbers.get(ValueLayout.JAVA_BYTE, i * Integer.BYTES + place));
        }
        return bytes;
    }

    @Test
    void headsOfAnotherRankStayAsTheyAre() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment packed = page(arena, BlockInterior.CPU_VEC);
            MemorySegment plain = page(arena, BlockInterior.HEADS);
            MemorySegment page = page(arena, BlockInterior.CPU_VEC);
            new PageRearrangement(LAYOUT, BlockInterior.CPU_VEC).rearrange(page, 1, 1);
            long head = LAYOUT.headBytes();
            assertThat(page.asSlice(0, head).mismatch(packed.asSlice(0, head))).isEqualTo(-1);
            assertThat(page.asSlice(head, head).mismatch(plain.asSlice(head, head)))
                    .isEqualTo(-1);
            assertThat(page.asSlice(2 * head).mismatch(packed.asSlice(2 * head)))
                    .isEqualTo(-1);
        }
    }
}
