package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class LogOutputTest {
    private static final int THREADS = 4;
    private static final int LINES = 20_000;

    private final ByteArrayOutputStream target = new ByteArrayOutputStream();

    private static PrintStream stream(OutputStream output) {
        return new PrintStream(output, false, StandardCharsets.UTF_8);
    }

    @Test
    void allLinesOfAllThreadsAreWrittenInEachThreadsOrder() throws Exception {
        try (LogOutput output = LogOutput.to(stream(target))) {
            PrintStream lines = stream(output);
            List<Thread> threads = new ArrayList<>();
            for (int thread = 0; thread < THREADS; thread++) {
                int number = thread;
                threads.add(Thread.ofPlatform().start(() -> {
                    for (int line = 0; line < LINES; line++) {
                        lines.println(number + " " + line + " \u00fc");
                        lines.flush();
                    }
                }));
            }
            for (Thread each : threads) {
                each.join();
            }
        }
        List<String> written = target.toString(StandardCharsets.UTF_8).lines().toList();
        assertThat(written).hasSize(THREADS * LINES);
        for (int thread = 0; thread < THREADS; thread++) {
            String begin = thread + " ";
            assertThat(written.stream().filter(line -> line.startsWith(begin)))
                    .containsExactlyElementsOf(IntStream.range(0, LINES)
                            .mapToObj(line -> begin + line + " \u00fc")
                            .toList());
        }
    }

    @Test
    void aThreadThatLogsDoesNotWaitForTheTarget() throws Exception {
        CountDownLatch mayWrite = new CountDownLatch(1);
        OutputStream slow = new OutputStream() {
            @Override
            public void write(int value) {
                write(new byte[] {(byte) value}, 0, 1);
            }

            @Override
            public void write(byte[] bytes, int offset, int count) {
                try {
                    mayWrite.await();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
                target.write(bytes, offset, count);
            }
        };
        try (LogOutput output = LogOutput.to(stream(slow))) {
            PrintStream lines = stream(output);
            lines.println("first");
            lines.flush();
            lines.println("second");
            lines.flush();
            assertThat(target.size()).isZero();
            mayWrite.countDown();
        }
        assertThat(target.toString(StandardCharsets.UTF_8).lines()).containsExactly("first", "second");
    }

    @Test
    void linesAfterTheEndAreWrittenAtOnce() throws Exception {
        PrintStream lines;
        try (LogOutput output = LogOutput.to(stream(target))) {
            lines = stream(output);
            lines.println("first");
        }
        lines.println("last");
        assertThat(target.toString(StandardCharsets.UTF_8).lines()).containsExactly("first", "last");
    }
}
