package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Copies, by the kernel and by Java: every byte in its place, no other byte touched, digests equal to {@link CRC32C}. */
class ParallelCopierTest {
    private static final int GUARD = 192;

    private final Random random = new Random(7);

    /** Rows, runs, bytes of a run, ranges: below and above the size that bypasses the caches, from one line a run on. */
    private static final int[][] SHAPES = {
        {1, 1, 64, 1},
        {2, 3, 64, 2},
        {3, 1, 128, 3},
        {1, 5, 192, 7},
        {2, 2, 256, 4},
        {3, 3, 320, 3},
        {16, 8, 4096, 5},
        {4, 2, 1024, 33},
        {16, 8, 4096, 17},
        {2, 1, 48, 3},
        {1, 3, 100, 4},
        {1, 1, 9 << 20, 1},
        {2, 2, 2 << 20, 3}
    };

    @ParameterizedTest
    @EnumSource
    void copiesAndDigestsEqualThoseOfTheJdk(CopiedBy by) throws Exception {
        Optional<CopyKernel> kernel = by.kernel();
        for (int[] shape : SHAPES) {
            for (int unaligned : new int[] {0, 16, 1}) {
                copies(kernel, shape[0], shape[1], shape[2], shape[3], unaligned, true);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void copiesWithoutDigestsEqualThoseOfTheJdk(CopiedBy by) throws Exception {
        Optional<CopyKernel> kernel = by.kernel();
        for (int[] shape : SHAPES) {
            copies(kernel, shape[0], shape[1], shape[2], shape[3], 0, false);
            copies(kernel, shape[0], shape[1], shape[2], shape[3], 32, false);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aByteThatDiffersChangesTheDigestOfItsRunOnly(CopiedBy by) throws Exception {
        Optional<CopyKernel> kernel = by.kernel();
        try (Arena arena = Arena.ofShared()) {
            MemorySegment from = arena.allocate(8192, 64);
            MemorySegment to = arena.allocate(8192, 64);
            int[][] told = new int[2][];
            run(
                    kernel,
                    List.of(new ParallelCopier.Copy(from, to)),
                    Optional.of(new RunDigests(4, 2, 1024, (_, clean) -> told[0] = clean)));
            from.set(ValueLayout.JAVA_BYTE, 5 * 1024 + 700, (byte) 1);
            run(
                    kernel,
                    List.of(new ParallelCopier.Copy(from, to)),
                    Optional.of(new RunDigests(4, 2, 1024, (_, flipped) -> told[1] = flipped)));
            assertThat(told[1][0]).isEqualTo(told[0][0]);
            assertThat(told[1][1]).isNotEqualTo(told[0][1]);
        }
    }

    @ParameterizedTest
    @EnumSource
    void theDigestOfAnOddLastRangeIsThatOfItsDestinationWhileTheSourceChanges(CopiedBy by) throws Exception {
        Optional<CopyKernel> kernel = by.kernel();
        try (Arena arena = Arena.ofShared()) {
            MemorySegment from = arena.allocate(4096, 64);
            MemorySegment to = arena.allocate(4096, 64);
            AtomicBoolean stop = new AtomicBoolean();
            Thread writer = Thread.ofPlatform().start(() -> {
                for (byte value = 0; !stop.get(); value++) {
                    from.asSlice(4032).fill(value);
                }
            });
            int[][] told = new int[1][];
            RunDigests digests = new RunDigests(1, 1, 4096, (_, crc32c) -> told[0] = crc32c);
            for (int i = 0; i < 20_000; i++) {
                run(kernel, List.of(new ParallelCopier.Copy(from, to)), Optional.of(digests));
                assertThat(told[0]).isEqualTo(expected(to, 1, 1, 4096));
            }
            stop.set(true);
            writer.join();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aReadOnlyDestinationFailsTheCopyAndIsNotWritten(CopiedBy by) throws Exception {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment to = arena.allocate(16 << 20, 64);
            List<ParallelCopier.Copy> copies =
                    List.of(new ParallelCopier.Copy(arena.allocate(16 << 20, 64).fill((byte) 1), to.asReadOnly()));
            RunDigests digests = new RunDigests(1, 1, 16 << 20, (_, _) -> {});
            Optional<CopyKernel> kernel = by.kernel();
            assertThat(run(kernel, copies, Optional.empty())).isInstanceOf(End.Failed.class);
            assertThat(run(kernel, copies, Optional.of(digests))).isInstanceOf(End.Failed.class);
            assertThat(to.get(ValueLayout.JAVA_BYTE, 0)).isZero();
        }
    }

    @Test
    void aListenerThatThrowsFailsTheCopy() throws Exception {
        try (Arena arena = Arena.ofShared()) {
            List<ParallelCopier.Copy> copies =
                    List.of(new ParallelCopier.Copy(arena.allocate(4096, 64), arena.allocate(4096, 64)));
            RunDigests digests = new RunDigests(1, 1, 4096, (_, _) -> {
                throw new IllegalStateException("no such block");
            });
            assertThat(run(Optional.empty(), copies, Optional.of(digests)))
                    .isEqualTo(new End.Failed("java.lang.IllegalStateException: no such block"));
        }
    }

    @Test
    void aClosedCopierRejectsALargeCopy() throws Exception {
        try (Arena arena = Arena.ofShared()) {
            ParallelCopier copier = new ParallelCopier("test", 2, Optional.empty());
            copier.close();
            Copying copying = new Copying();
            copier.start(
                    copying,
                    copying,
                    List.of(new ParallelCopier.Copy(arena.allocate(1 << 20, 64), arena.allocate(1 << 20, 64))));
            assertThat(copying.over.get(30, TimeUnit.SECONDS)).isEqualTo(new End.Failed("rejected"));
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 7})
    void theKernelTakesEveryPieceForAnyNumberOfThreads(int threads) {
        try (Arena arena = Arena.ofConfined()) {
            List<ParallelCopier.Copy> ranges = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                ranges.add(new ParallelCopier.Copy(arena.allocate(512 << 10, 64), arena.allocate(512 << 10, 64)));
            }
            assertThat(ParallelCopier.pieces(ranges, ParallelCopier.most(20L * (512 << 10), threads)))
                    .allSatisfy(piece -> assertThat(piece).allMatch(CopyKernel::takes));
        }
    }

    private void copies(
            Optional<CopyKernel> kernel, int rows, int runs, int runBytes, int count, int unaligned, boolean digested)
            throws Exception {
        long bytes = (long) rows * runs * runBytes;
        try (Arena arena = Arena.ofShared()) {
            List<MemorySegment> destinations = new ArrayList<>();
            List<ParallelCopier.Copy> copies = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                MemorySegment from = arena.allocate(bytes + 64, 64).asSlice(i % 2 == 0 ? 0 : 8, bytes);
                RandomBytes.fill(from, random);
                MemorySegment around = arena.allocate(bytes + 2 * GUARD, 64).fill((byte) 0x5a);
                destinations.add(around);
                copies.add(new ParallelCopier.Copy(from, around.asSlice(GUARD + unaligned, bytes)));
            }
            int[][] told = new int[count][];
            AtomicIntegerArray times = new AtomicIntegerArray(count);
            RunDigests digests = new RunDigests(rows, runs, runBytes, (range, crc32c) -> {
                told[range] = crc32c;
                times.incrementAndGet(range);
            });
            End end = run(kernel, copies, digested ? Optional.of(digests) : Optional.empty());

            String what = "rows=%d runs=%d runBytes=%d ranges=%d unaligned=%d"
                    .formatted(rows, runs, runBytes, count, unaligned);
            assertThat(end).as(what).isInstanceOf(End.Copied.class);
            boolean lines = runBytes % 64 == 0 && unaligned % 64 == 0;
            assertThat(copies)
                    .as(what)
                    .allMatch(copy -> CopyKernel.takes(copy, digests) == lines
                            && CopyKernel.takes(copy) == (bytes % 128 == 0 && unaligned % 64 == 0));
            for (int i = 0; i < count; i++) {
                ParallelCopier.Copy copy = copies.get(i);
                assertThat(copy.from().mismatch(copy.to())).as(what).isEqualTo(-1);
                MemorySegment around = destinations.get(i);
                assertUntouched(around.asSlice(0, GUARD + unaligned), what);
                assertUntouched(around.asSlice(GUARD + unaligned + bytes), what);
                assertThat(times.get(i)).as(what).isEqualTo(digested ? 1 : 0);
                if (digested) {
                    assertThat(told[i]).as(what).isEqualTo(expected(copy.from(), rows, runs, runBytes));
                }
            }
        }
    }

    private static void assertUntouched(MemorySegment guard, String what) {
        byte[] bytes = guard.toArray(ValueLayout.JAVA_BYTE);
        byte[] untouched = new byte[bytes.length];
        Arrays.fill(untouched, (byte) 0x5a);
        assertThat(bytes).as(what).isEqualTo(untouched);
    }

    private static int[] expected(MemorySegment range, int rows, int runs, int runBytes) {
        int[] digests = new int[runs];
        for (int run = 0; run < runs; run++) {
            CRC32C crc = new CRC32C();
            for (int row = 0; row < rows; row++) {
                crc.update(range.asSlice(((long) row * runs + run) * runBytes, runBytes)
                        .toArray(ValueLayout.JAVA_BYTE));
            }
            digests[run] = (int) crc.getValue();
        }
        return digests;
    }

    /** How a copy ends. */
    private sealed interface End {
        record Copied() implements End {}

        record Failed(String why) implements End {}
    }

    private static final class Copying extends Gate<End> implements ParallelCopier.Completion {
        private final CompletableFuture<End> over = new CompletableFuture<>();

        @Override
        protected void over(End end) {
            over.complete(end);
        }

        @Override
        public void copied() {
            end(new End.Copied());
        }

        @Override
        public void failed(Throwable cause) {
            end(new End.Failed(cause.toString()));
        }

        @Override
        public void rejected() {
            end(new End.Failed("rejected"));
        }
    }

    private static End run(Optional<CopyKernel> kernel, List<ParallelCopier.Copy> copies, Optional<RunDigests> digests)
            throws Exception {
        Copying copying = new Copying();
        try (ParallelCopier copier = new ParallelCopier("test", 2, kernel)) {
            copier.start(copying, copying, copies, digests);
            return copying.over.get(30, TimeUnit.SECONDS);
        }
    }
}
