package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class CompilerThreadsTest {
    /** Field of /proc/PID/stat after the name in parentheses (proc(5)). */
    private static final int NICE = 16;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private record Task(String name, int nice) {}

    private static Optional<Task> read(Path task) {
        try {
            String stat = Files.readString(task.resolve("stat"));
            int end = stat.lastIndexOf(')');
            String[] fields = stat.substring(end + 2).split(" ");
            return Optional.of(new Task(stat.substring(stat.indexOf('(') + 1, end), Integer.parseInt(fields[NICE])));
        } catch (NoSuchFileException e) {
            return Optional.empty();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Test
    void onlyTheCompilersOfAServerThatHasWarmedUpStepBack() throws Exception {
        Instance instance = INSTANCES.serve("compilers", "--warmup");
        assertThat(instance.get("/health").status()).isEqualTo(200);
        int own = read(Path.of("/proc/self")).orElseThrow().nice();
        List<Task> threads;
        try (Stream<Path> tasks = Files.list(Path.of("/proc", Long.toString(instance.pid()), "task"))) {
            threads = tasks.map(CompilerThreadsTest::read)
                    .flatMap(Optional::stream)
                    .toList();
        }
        assertThat(threads)
                .filteredOn(thread -> thread.name().matches("C[12] Compiler.*"))
                .isNotEmpty()
                .allMatch(thread -> thread.nice() == CompilerThreads.NICE);
        assertThat(threads)
                .filteredOn(thread -> thread.name().matches("engine|vert\\.x-eventloop.*|vert\\.x-eventloo"))
                .hasSizeGreaterThan(1)
                .allMatch(thread -> thread.nice() == own);
    }
}
