package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(300)
class InstalledProgramTest {
    @TempDir
    private Path directory;

    private InstalledProgram start(String script) throws Exception {
        return InstalledProgram.start(directory.resolve("log"), List.of("sh", "-c", script));
    }

    @Test
    void closingSendsTheSignalThatAProgramCanCatch() throws Exception {
        InstalledProgram program = start("trap 'echo caught; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        try (program) {
            program.await(() -> program.log().contains("ready"));
        }
        assertThat(program.isAlive()).isFalse();
        assertThat(program.log()).contains("caught");
    }

    @Test
    void theProcessNumberIsTheProgramsOwn() throws Exception {
        try (InstalledProgram program = start("echo $$; exec sleep 60")) {
            program.await(() -> program.log().endsWith("\n"));
            assertThat(program.log().strip()).isEqualTo(Long.toString(program.pid()));
            program.kill();
            assertThat(program.isAlive()).isFalse();
        }
    }

    @Test
    void aProgramThatEndsBeforeItIsReadyFailsWithItsOutput() throws Exception {
        try (InstalledProgram program = start("echo no such option >&2; exit 1")) {
            assertThatThrownBy(() -> program.awaitListening(1))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("no such option");
        }
    }
}
