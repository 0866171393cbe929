package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SegmentAllocator;
import java.lang.foreign.ValueLayout;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.ToLongFunction;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/** The resources of a process, counted while it has nothing to do, and their growth. */
final class SoakGrowth {
    /** Java threads and open files that may come and go: carriers of virtual threads, a connection being closed. */
    static final int THREADS = 4;

    static final int FILES = 4;

    private SoakGrowth() {}

    /**
     * A count.
     *
     * @param requests made until then
     * @param heapBytes in use after a collection
     * @param mallocBytes in use by glibc's account, which is LibTorch's and the JVM's own
     * @param rssBytes resident memory, without freed memory that glibc keeps
     * @param threads Java's, without those of compilers and collectors
     */
    record Sample(long requests, long heapBytes, long mallocBytes, long rssBytes, int threads, int files) {
        static Sample take(long requests) throws IOException {
            System.gc();
            System.gc();
            trim();
            return new Sample(
                    requests,
                    ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed(),
                    malloced(),
                    resident(),
                    ManagementFactory.getThreadMXBean().getThreadCount(),
                    openFiles());
        }

        @Override
        public String toString() {
            return String.format(
                    Locale.ROOT,
                    "%8d requests, heap %6.1f MiB, malloc %6.1f MiB, resident %7.1f MiB, %d threads, %d files",
                    requests,
                    heapBytes / 1048576.0,
                    mallocBytes / 1048576.0,
                    rssBytes / 1048576.0,
                    threads,
                    files);
        }
    }

    /**
     * Fails if the last third of the samples holds more than the second, by more than a floor and four standard deviations of one
     * sample, as measured by how samples differ from the ones before them: a leak moves that difference, not its scatter. The
     * first third is warm-up.
     */
    static void assertFlat(List<Sample> samples) {
        assertThat(samples).as("rounds").hasSizeGreaterThanOrEqualTo(9);
        flat("heap bytes", samples, Sample::heapBytes, 2 << 20);
        flat("malloc bytes", samples, Sample::mallocBytes, 4 << 20);
        flat("resident bytes", samples, Sample::rssBytes, 24 << 20);
        flat("threads", samples, Sample::threads, THREADS);
        flat("files", samples, Sample::files, FILES);
    }

    private static void flat(String what, List<Sample> samples, ToLongFunction<Sample> value, long floor) {
        long[] values =
                samples.stream().skip(samples.size() / 3).mapToLong(value).toArray();
        int half = values.length / 2;
        double growth = median(Arrays.stream(values).skip(half))
                - median(Arrays.stream(values).limit(half));
        long[] steps = LongStream.range(1, values.length)
                .map(i -> values[(int) i] - values[(int) i - 1])
                .toArray();
        double step = median(Arrays.stream(steps));
        // The median distance of a normal distribution's values is 0.6745 deviations; a difference has two samples'
        // scatter.
        double deviation =
                median(Arrays.stream(steps).map(each -> Math.round(Math.abs(each - step)))) / 0.6745 / Math.sqrt(2);
        double bound = floor + 4 * deviation;
        System.out.printf(
                Locale.ROOT,
                "%s: grew by %.0f, one sample's standard deviation is %.0f, bound %.0f%n",
                what,
                growth,
                deviation,
                bound);
        assertThat(growth)
                .as("growth of %s after warm-up: %s", what, Arrays.toString(values))
                .isLessThanOrEqualTo(bound);
    }

    private static double median(LongStream values) {
        long[] sorted = values.sorted().toArray();
        return (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2.0;
    }

    /** Names of the Java threads that run. */
    static List<String> threads() {
        return Thread.getAllStackTraces().keySet().stream().map(Thread::getName).toList();
    }

    static int openFiles() throws IOException {
        try (Stream<Path> open = Files.list(Path.of("/proc/self/fd"))) {
            return Math.toIntExact(open.count());
        }
    }

    private static long resident() throws IOException {
        String line = Files.readAllLines(Path.of("/proc/self/status")).stream()
                .filter(each -> each.startsWith("VmRSS:"))
                .findFirst()
                .orElseThrow();
        return Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
    }

    /** Returns freed memory that glibc keeps: the peak of a compilation would stay resident. */
    private static void trim() {
        Linker linker = Linker.nativeLinker();
        var trim = linker.downcallHandle(
                linker.defaultLookup().findOrThrow("malloc_trim"),
                FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG));
        try {
            int _ = (int) trim.invokeExact(0L);
        } catch (Throwable e) {
            throw new IllegalStateException("malloc_trim cannot be called", e);
        }
    }

    /** {@code uordblks + hblkhd} of glibc's {@code mallinfo2}: the bytes allocated in arenas and by mapping. */
    private static long malloced() {
        Linker linker = Linker.nativeLinker();
        MemoryLayout info = MemoryLayout.structLayout(MemoryLayout.sequenceLayout(10, ValueLayout.JAVA_LONG));
        var mallinfo2 =
                linker.downcallHandle(linker.defaultLookup().findOrThrow("mallinfo2"), FunctionDescriptor.of(info));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment counted = (MemorySegment) mallinfo2.invokeExact((SegmentAllocator) arena);
            return counted.getAtIndex(ValueLayout.JAVA_LONG, 4) + counted.getAtIndex(ValueLayout.JAVA_LONG, 7);
        } catch (Throwable e) {
            throw new IllegalStateException("mallinfo2 cannot be called", e);
        }
    }
}
