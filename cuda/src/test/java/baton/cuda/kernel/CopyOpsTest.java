package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

class CopyOpsTest {
    private static final long SEED = Long.getLong("tests.seed", 11);

    private static MemorySegment bytes(int count) {
        byte[] bytes = new byte[count];
        new Random(SEED).nextBytes(bytes);
        return Arena.ofAuto().allocate(count, 16).copyFrom(MemorySegment.ofArray(bytes));
    }

    @Test
    void runsAtEqualDistancesAreCopied() {
        try (TestDevice device = new TestDevice();
                Functions functions = new Functions(device.gpu(), CopyOps.kernels())) {
            MemorySegment bytes = bytes(100_000);
            long from = device.put(bytes);
            long to = device.put(Arena.ofAuto().allocate(bytes.byteSize(), 16));
            // From, its stride, to, its stride, count, bytes: aligned ones and others; more and less than all threads
            // take at once.
            long[][] rows = {
                {0, 512, 16, 256, 40, 256},
                {64, 32, 20_000, 48, 7, 16},
                {3, 10, 25_001, 9, 5, 7},
                {50, 0, 3, 0, 1, 1},
                {1, 0, 30_000, 0, 1, 3001},
                {4096, 0, 40_000, 0, 1, 50_000},
                {0, 16, 35_000, 16, 4, 0},
                {0, 16, 35_000, 16, 0, 16}
            };
            List<Long> numbers = new ArrayList<>();
            MemorySegment expected = Arena.ofAuto().allocate(bytes.byteSize(), 16);
            for (long[] row : rows) {
                numbers.addAll(List.of(from + row[0], row[1], to + row[2], row[3], row[4], row[5]));
                for (int i = 0; i < row[4]; i++) {
                    MemorySegment.copy(bytes, row[0] + i * row[1], expected, row[2] + i * row[3], row[5]);
                }
            }
            new CopyOps(functions)
                    .copy(
                            device.stream(),
                            device.put(
                                    numbers.stream().mapToLong(Long::longValue).toArray()),
                            rows.length);
            assertThat(device.get(to, bytes.byteSize()).mismatch(expected)).isEqualTo(-1);
        }
    }

    @Test
    void digestsAreThoseOfTheHost() {
        try (TestDevice device = new TestDevice();
                Functions functions = new Functions(device.gpu(), CopyOps.kernels())) {
            MemorySegment bytes = bytes(100_000);
            bytes.asSlice(60_000, 20_000).fill((byte) 0xff);
            List<Runs> values = List.of(
                    new Runs(0, 8192, 3, 8192),
                    new Runs(16, 4096, 5, 48),
                    new Runs(32, 30_000, 2, 16 * 257),
                    new Runs(4, 1000, 7, 12),
                    new Runs(8, 2048, 4, 1003),
                    new Runs(16, 16, 0, 16),
                    new Runs(64, 0, 1, 0),
                    new Runs(12, 0, 1, 2),
                    new Runs(60_000, 0, 1, 20_000));
            long from = device.put(bytes);
            List<Long> numbers = new ArrayList<>();
            long[] expected = new long[values.size()];
            for (int i = 0; i < expected.length; i++) {
                Runs runs = values.get(i);
                numbers.addAll(List.of(from + runs.first(), runs.stride(), (long) runs.count(), runs.bytes()));
                KvDigest.Running digest = KvDigest.SUM61.begin();
                for (int run = 0; run < runs.count(); run++) {
                    digest.add(bytes.asSlice(runs.first() + run * runs.stride(), runs.bytes())
                            .asByteBuffer());
                }
                expected[i] = digest.value();
            }
            long digests = device.put(new long[expected.length]);
            new CopyOps(functions)
                    .digest(
                            device.stream(),
                            device.put(
                                    numbers.stream().mapToLong(Long::longValue).toArray()),
                            expected.length,
                            digests);
            assertThat(device.longs(digests, expected.length)).containsExactly(expected);
        }
    }
}
