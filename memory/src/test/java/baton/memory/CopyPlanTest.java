package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Plans of copies, by the kernel and by Java: every byte in its place, no other byte touched, digests equal to {@link CRC32C}. */
class CopyPlanTest {
    private final Random random = new Random(7);

    /** Threads, values, parts of a value, bytes of a part: below and above the size that bypasses the caches, in whole lines and not. */
    private static final int[][] SHAPES = {
        {2, 5, 4, 4096},
        {2, 40, 16, 16384},
        {0, 3, 7, 100},
        {1, 3, 7, 300_001},
        {3, 2, 1, 9_000_064},
        {1, 20, 1, 524_288}
    };

    /** Parts of values in two memories, in no order. */
    @ParameterizedTest
    @EnumSource
    void partsOfValuesAreCopiedAndDigested(CopiedBy by) throws Exception {
        Optional<CopyKernel> kernel = by.kernel();
        for (int[] shape : SHAPES) {
            for (boolean digested : new boolean[] {true, false}) {
                for (boolean inOrder : new boolean[] {true, false}) {
                    copies(kernel, shape[0], shape[1], shape[2], shape[3], digested, inOrder);
                }
            }
        }
    }

    /** The parts of values that one memory has. */
    private record Parts(
            MemorySegment from,
            MemorySegment to,
            List<Integer> numbers,
            int parts,
            int partBytes,
            long stride,
            Optional<ValueDigests> digests)
            implements CopyRanges {
        @Override
        public int size() {
            return numbers.size();
        }

        @Override
        public long bytes(int range) {
            return partBytes;
        }

        @Override
        public CopyPlan newPlan() {
            return new CopyPlan(from, to, digests);
        }

        @Override
        public void addTo(CopyPlan plan, int range, long at, long length) {
            int number = numbers.get(range);
            long inValue = (long) number % parts * partBytes + at;
            plan.add(
                    number / parts, inValue, (long) number * partBytes + at, number / parts * stride + inValue, length);
        }
    }

    private void copies(
            Optional<CopyKernel> kernel,
            int threads,
            int values,
            int parts,
            int partBytes,
            boolean digested,
            boolean inOrder)
            throws Exception {
        long valueBytes = (long) parts * partBytes;
        long stride = Math.ceilDiv(valueBytes, 64) * 64;
        try (Arena arena = Arena.ofShared();
                ParallelCopier copier = new ParallelCopier("test", threads, kernel)) {
            MemorySegment to = arena.allocate(values * stride + 64, 64).fill((byte) 0x5a);
            Optional<ValueDigests> digests =
                    digested ? Optional.of(new ValueDigests(values, valueBytes)) : Optional.empty();
            List<MemorySegment> sources =
                    List.of(arena.allocate(values * valueBytes, 64), arena.allocate(values * valueBytes + 8, 64));
            List<Parts> all = new ArrayList<>();
            for (int source = 0; source < 2; source++) {
                MemorySegment from = sources.get(source);
                RandomBytes.fill(from, random);
                int first = source;
                List<Integer> ofSource = new ArrayList<>(IntStream.range(0, values * parts)
                        .filter(part -> part % parts % 2 == first)
                        .boxed()
                        .toList());
                if (!inOrder) {
                    Collections.shuffle(ofSource, random);
                }
                all.add(new Parts(from, to, ofSource, parts, partBytes, stride, digests));
            }
            Copying copying = new Copying();
            copier.startRanges(copying, copying, all, values * valueBytes, digested);
            assertThat(copying.over.get(30, TimeUnit.SECONDS)).isEqualTo("copied");
            for (int value = 0; value < values; value++) {
                MemorySegment expected =
                        MemorySegment.ofArray(new byte[(int) stride]).fill((byte) 0x5a);
                for (int part = 0; part < parts; part++) {
                    MemorySegment.copy(
                            sources.get(part % 2),
                            ((long) value * parts + part) * partBytes,
                            expected,
                            (long) part * partBytes,
                            partBytes);
                }
                assertThat(to.asSlice(value * stride, stride).mismatch(expected))
                        .isEqualTo(-1);
                if (digested) {
                    CRC32C crc = new CRC32C();
                    crc.update(expected.asSlice(0, valueBytes).asByteBuffer());
                    assertThat(digests.orElseThrow().crc32c(value)).isEqualTo((int) crc.getValue());
                }
            }
            assertThat(to.asSlice(values * stride).toArray(ValueLayout.JAVA_BYTE))
                    .containsOnly(0x5a);
        }
    }

    @Test
    void rangesThatContinueEachOtherAreOneAndThoseAtOneDistanceAreRows() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(4096);
            CopyPlan plan = new CopyPlan(memory, arena.allocate(4096), Optional.empty());
            plan.add(0, 0, 0, 1024, 64);
            plan.add(1, 0, 64, 1088, 128);
            plan.add(1, 192, 256, 1536, 192);
            plan.add(1, 384, 512, 2048, 192);
            plan.add(1, 192, 768, 2500, 192);
            assertThat(IntStream.range(0, plan.size()).mapToLong(plan::length)).containsExactly(576L, 192L);
            CopyPlan digested = new CopyPlan(memory, arena.allocate(4096), Optional.of(new ValueDigests(2, 4096)));
            digested.add(0, 0, 0, 1024, 64);
            digested.add(1, 0, 64, 1088, 128);
            assertThat(digested.size()).as("digests are of one value each").isEqualTo(2);
        }
    }

    @Test
    void rangesOutsideOfMemoryAreRefused() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(4096);
            CopyPlan plan = new CopyPlan(memory, memory, Optional.of(new ValueDigests(1, 1000)));
            assertThatThrownBy(() -> plan.add(0, 0, 4096, 0, 1)).hasMessageContaining("from: offset=4096 length=1");
            assertThatThrownBy(() -> plan.add(0, 0, 0, -1, 1)).hasMessageContaining("to: offset=-1");
            assertThatThrownBy(() -> plan.add(0, 999, 0, 0, 2)).hasMessageContaining("value: offset=999");
            assertThatThrownBy(() -> new CopyPlan(memory, memory.asReadOnly(), Optional.empty()))
                    .isInstanceOf(IllegalArgumentException.class);
        }
    }

    @Test
    void memoryThatWasFreedFailsTheCopy() throws Exception {
        try (ParallelCopier copier = new ParallelCopier("test", 0, CopyKernel.ofThisMachine());
                Arena kept = Arena.ofShared()) {
            Arena freed = Arena.ofShared();
            Parts part = new Parts(
                    freed.allocate(16 << 20, 64),
                    kept.allocate(16 << 20, 64),
                    List.of(0),
                    1,
                    16 << 20,
                    16 << 20,
                    Optional.empty());
            freed.close();
            Copying copying = new Copying();
            copier.startRanges(copying, copying, List.of(part), 16 << 20, false);
            assertThat(copying.over.get(30, TimeUnit.SECONDS)).contains("memory was freed");
        }
    }

    private static final class Copying extends Gate<String> implements ParallelCopier.Completion {
        private final CompletableFuture<String> over = new CompletableFuture<>();

        @Override
        protected void over(String end) {
            over.complete(end);
        }

        @Override
        public void copied() {
            end("copied");
        }

        @Override
        public void failed(Throwable cause) {
            end(cause.toString());
        }

        @Override
        public void rejected() {
            end("rejected");
        }
    }
}
