package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.Ticker;
import baton.store.prompt.SharedStorage;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

class KvFilesCommandTest {
    @TempDir
    Path root;

    private record Run(int status, String out, String err) {}

    private static Run run(String... arguments) {
        StringWriter out = new StringWriter();
        StringWriter err = new StringWriter();
        CommandLine command = Baton.commandLine(new ServeCommand())
                .setOut(new PrintWriter(out))
                .setErr(new PrintWriter(err));
        int status = command.execute(arguments);
        return new Run(status, out.toString(), err.toString());
    }

    private Path entry(char digit, Duration unused) throws IOException {
        SharedStorage.Format format = new SharedStorage.Format(List.of("layer.0"), 2, 8, DType.BF16, "a1");
        String name = Character.toString(digit).repeat(32);
        try (Arena arena = Arena.ofConfined();
                SharedStorage.Writer writer = new SharedStorage(root, format, Ticker.system()).write(name, 1024)) {
            writer.layer(0, arena.allocate(format.layerBytes(1024), 64));
            assertThat(writer.commit()).isTrue();
        }
        FileTime time = FileTime.from(Instant.now().minus(unused));
        try (Stream<Path> files = Files.walk(root.resolve(name))) {
            for (Path file : files.toList()) {
                Files.getFileAttributeView(file, BasicFileAttributeView.class).setTimes(time, time, null);
            }
        }
        return root.resolve(name);
    }

    @Test
    void kvFilesAreListedAndCollectedByAgeAndSize() throws IOException {
        Path oldest = entry('a', Duration.ofDays(9).plusHours(1));
        Path older = entry('b', Duration.ofDays(3).plusHours(1));
        Path newest = entry('c', Duration.ofDays(2).plusHours(1));
        assertThat(run("kv-files", "ls", root.toString()).out())
                .containsPattern(" 3 +19\\d\\.\\d KiB +2d to 9d +shared storage");

        String directory = root.toString();
        Run dry = run("kv-files", "gc", directory, "--max-age", "7d", "--max-size", "100K", "--dry-run");
        assertThat(dry.status()).isZero();
        assertThat(dry.out())
                .contains("would remove " + oldest + " (shared storage, 64.", "would remove " + older)
                .contains("would remove 2, ", "; 1 left, ");
        assertThat(oldest).exists();

        Run byAge = run("kv-files", "gc", directory, "--max-age", "7d");
        assertThat(byAge.out()).contains("removed " + oldest, "unused for 9d", "removed 1, ", "; 2 left, ");
        assertThat(oldest).doesNotExist();
        Run bySize = run("kv-files", "gc", directory, "--max-size", "100K");
        assertThat(bySize.out()).contains("removed " + older, "removed 1, ");
        assertThat(older).doesNotExist();
        assertThat(newest).isDirectory();
    }

    @ParameterizedTest
    @CsvSource({
        "--max-size, 10XB, 'is not a number such as'",
        "--max-age, 7, 'is not a time such as 90s, 30m, 12h, 7d'",
        "--max-age, 7y, 'is not a time such as'",
        "--max-age, , 'Missing required parameter'"
    })
    void kvFilesLimitsThatAreWrongAreRefused(String option, String value, String complaint) {
        Run wrong = value == null
                ? run("kv-files", "gc", root.toString(), option)
                : run("kv-files", "gc", root.toString(), option, value);
        assertThat(wrong.status()).isEqualTo(2);
        assertThat(wrong.err()).contains(option, complaint);
        if (value != null) {
            assertThat(wrong.err()).contains("'" + value + "'");
        }
    }

    @Test
    void kvFilesRefusesAFileAsDirectory() {
        Run missing = run("kv-files", "gc", root.resolve("missing").toString());
        assertThat(missing.status()).isEqualTo(2);
        assertThat(missing.err()).contains("DIR: is ", "missing", "not a directory");
    }
}
