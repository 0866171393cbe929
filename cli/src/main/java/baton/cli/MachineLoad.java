package baton.cli;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.function.Consumer;
import java.util.function.DoubleSupplier;
import java.util.stream.Stream;

/**
 * Warns, once, when other processes compete for the processors that this process computes on. The threads of a step wait for each other many times,
 * so one that does not get its processor holds up all.
 */
final class MachineLoad implements AutoCloseable {
    private static final Duration BETWEEN_LOOKS = Duration.ofSeconds(30);
    private static final Path PROC = Path.of("/proc");

    private final DoubleSupplier loadAverage;
    private final int processors;
    private final int threads;
    private final Consumer<String> warn;
    private final Thread watch;
    private volatile boolean warned;

    /**
     * @param loadAverage of the last minute, negative if it is not known
     * @param processors of the machine that it is of
     * @param threads that this process computes with
     */
    MachineLoad(DoubleSupplier loadAverage, int processors, int threads, Consumer<String> warn, Duration betweenLooks) {
        this.loadAverage = loadAverage;
        this.processors = processors;
        this.threads = threads;
        this.warn = warn;
        this.watch = Thread.ofVirtual().name("machine-load").unstarted(() -> {
            try {
                while (!warned) {
                    Thread.sleep(betweenLooks);
                    look(threads);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        });
    }

    /** The load of this machine, which may have more processors than this process may use. */
    static MachineLoad here(int threads, Consumer<String> warn) {
        return new MachineLoad(MachineLoad::ofLastMinute, machineProcessors(), threads, warn, BETWEEN_LOOKS);
    }

    /** Checks now, before this process computes, and then every half a minute until it has warned. */
    void start() {
        look(0);
        watch.start();
    }

    /** @param own threads of this process that may be among those that run */
    private void look(int own) {
        double load = loadAverage.getAsDouble();
        if (load - own >= 2.0 * processors) {
            warned = true;
            warn.accept(
                    "The load average is %.1f on %d processors: other processes take them from the %s, so answers take longer%s"
                            .formatted(
                                    load,
                                    processors,
                                    threads == 1 ? "thread that computes here" : threads + " threads that compute here",
                                    threads == 1
                                            ? ""
                                            : ", many times so where threads wait for each other; fewer --threads suffer less"));
        }
    }

    private static double ofLastMinute() {
        try {
            String line = Files.readString(PROC.resolve("loadavg"));
            return Double.parseDouble(line.substring(0, line.indexOf(' ')));
        } catch (IOException | RuntimeException e) {
            return ManagementFactory.getOperatingSystemMXBean().getSystemLoadAverage();
        }
    }

    /** A container's load average is that of the whole machine, its number of processors is not. */
    private static int machineProcessors() {
        int own = Runtime.getRuntime().availableProcessors();
        try (Stream<String> lines = Files.lines(PROC.resolve("cpuinfo"))) {
            return Math.max(own, (int)
                    lines.filter(line -> line.toLowerCase(Locale.ROOT).startsWith("processor\t"))
                            .count());
        } catch (IOException | RuntimeException e) {
            return own;
        }
    }

    @Override
    public void close() {
        watch.interrupt();
    }
}
