package baton.bench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * UCX's own measurement, {@code ucx_perftest}, where it is installed: one process gets contiguous bytes of another on this host, by
 * the transport that UCX chooses (shared memory).
 */
record UcxPerftest(Path program) {
    static final String PROGRAM = "ucx_perftest";

    private static final long ENOUGH_BYTES = 128L << 20;
    private static final Duration DEADLINE = Duration.ofSeconds(30);
    private static final int REFUSED_PAUSE_MILLIS = 5;

    /**
     * Seconds that getting so many bytes took, the median of a few times.
     *
     * @param port a free one, for the two processes to meet at
     * @throws IOException if it does not run, or its output is not as expected
     */
    double get(long bytes, int port) throws IOException, InterruptedException {
        String at = String.valueOf(port);
        long times = Math.clamp(ENOUGH_BYTES / bytes, 2, 50);
        Process server = start(List.of(program.toString(), "-p", at));
        try {
            List<String> client = List.of(
                    program.toString(),
                    "127.0.0.1",
                    "-p",
                    at,
                    "-t",
                    "ucp_get",
                    "-s",
                    String.valueOf(bytes),
                    "-n",
                    String.valueOf(times),
                    "-w",
                    "1",
                    "-f",
                    "-v");
            long deadline = System.nanoTime() + DEADLINE.toNanos();
            // Retried until the server process listens.
            while (true) {
                Process process = start(client);
                try {
                    if (!process.waitFor(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)) {
                        throw new IOException("%s has not measured within %s".formatted(PROGRAM, DEADLINE));
                    }
                    String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
                    if (process.exitValue() == 0) {
                        return seconds(said);
                    }
                    if (!server.isAlive() || System.nanoTime() - deadline > 0) {
                        throw new IOException("%s fails: %s".formatted(PROGRAM, said.strip()));
                    }
                } finally {
                    process.destroyForcibly();
                }
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(REFUSED_PAUSE_MILLIS));
            }
        } finally {
            server.destroyForcibly();
        }
    }

    private static Process start(List<String> command) throws IOException {
        return new ProcessBuilder(command).redirectErrorStream(true).start();
    }

    /** Reads its comma-separated output: a line of names, and a line of figures, of which the second is the median in microseconds. */
    static double seconds(String said) throws IOException {
        List<String> lines = said.strip().lines().toList();
        String[] figures = lines.getLast().strip().split(",", -1);
        if (lines.size() < 2 || !lines.get(lines.size() - 2).startsWith("iterations,") || figures.length < 2) {
            throw new IOException("%s says something else than figures: %s".formatted(PROGRAM, said.strip()));
        }
        try {
            return Double.parseDouble(figures[1]) / 1e6;
        } catch (NumberFormatException e) {
            throw new IOException("%s says something else than figures: %s".formatted(PROGRAM, said.strip()), e);
        }
    }
}
