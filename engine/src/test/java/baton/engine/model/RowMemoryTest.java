package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.Test;

/** Memory of activations is taken again after its scope, and does not grow by more steps of the same kind. */
class RowMemoryTest {
    private static final long LARGE = 40L << 20;

    @Test
    void memoryOfAScopeThatHasEndedIsTakenAgain() {
        try (RowMemory memory = new RowMemory();
                RowMemory.Scope _ = memory.scope()) {
            MemorySegment outer = memory.take(100);
            MemorySegment first;
            try (RowMemory.Scope _ = memory.scope()) {
                first = memory.take(1000);
                assertThat(first.asOverlappingSlice(outer)).isEmpty();
                assertThat(memory.take(10).asOverlappingSlice(first)).isEmpty();
            }
            assertThat(memory.take(2000).address()).isEqualTo(first.address());
            assertThat(first.address() % 64).isZero();
        }
    }

    @Test
    void outerMemoryStaysWhereItIsWhenMoreIsNeeded() {
        try (RowMemory memory = new RowMemory();
                RowMemory.Scope _ = memory.scope()) {
            MemorySegment outer = memory.take(100);
            outer.fill((byte) 7);
            for (int i = 0; i < 3; i++) {
                try (RowMemory.Scope _ = memory.scope()) {
                    memory.take(LARGE).fill((byte) i);
                    memory.take(LARGE).fill((byte) i);
                }
            }
            assertThat(outer.toArray(ValueLayout.JAVA_BYTE)).containsOnly(7);
        }
    }

    @Test
    void sizeIsThatOfTheLargestStepHoweverManyComeAfterIt() {
        try (RowMemory memory = new RowMemory()) {
            for (int step = 0; step < 5; step++) {
                try (RowMemory.Scope _ = memory.scope()) {
                    memory.take(LARGE);
                    memory.take(LARGE);
                    memory.take(1000);
                }
            }
            long size = memory.size();
            assertThat(size).isBetween(2 * LARGE, 5 * LARGE);
            for (int step = 0; step < 20; step++) {
                try (RowMemory.Scope _ = memory.scope()) {
                    memory.take(LARGE);
                    try (RowMemory.Scope _ = memory.scope()) {
                        memory.take(LARGE);
                    }
                    memory.take(1000);
                }
                assertThat(memory.size()).isEqualTo(size);
            }
        }
    }

    @Test
    void memoryIsNotTakenOutOfAScope() {
        try (RowMemory memory = new RowMemory()) {
            assertThatThrownBy(() -> memory.take(1))
                    .isInstanceOf(IllegalStateException.class)
                    .hasMessageContaining("scope");
        }
    }
}
