package baton.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ServerProcessTest {
    private static final Duration DEADLINE = Duration.ofMinutes(1);
    private static final JavaCommand COMMAND = JavaCommand.likeThisProcess(ServerProcessTest.class.getName());

    @TempDir
    private Path directory;

    /** The server: prints its arguments, then its ready line unless told not to, and exits at the end of its input. */
    public static void main(String[] args) throws IOException {
        System.err.println("arguments: " + List.of(args));
        System.out.println(ServerProcess.REGISTRATIONS + "127.0.0.1:7");
        if (args[0].equals("serve")) {
            System.out.println(ServerProcess.READY + "http://127.0.0.1:8");
            while (System.in.read() >= 0) {
                // Until the end.
            }
        }
    }

    @Test
    void addressesAreReadFromItsOutput() throws Exception {
        ServerProcess server = ServerProcess.start("server", COMMAND, List.of("serve"), directory.resolve("log"));
        assertThat(server.awaitReady(DEADLINE)).isEqualTo(URI.create("http://127.0.0.1:8"));
        assertThat(server.awaitRegistrations(DEADLINE)).isEqualTo(URI.create("tcp://127.0.0.1:7"));
        assertThat(server.process().logTail()).contains("--exit-with-parent");
        server.process().askToStop();
        assertThat(server.process().awaitExit(DEADLINE)).hasValue(0);
    }

    @Test
    void aServerThatEndsBeforeItIsReadyIsReportedWithItsLog() throws Exception {
        ServerProcess server = ServerProcess.start("server", COMMAND, List.of("fail"), directory.resolve("log"));
        assertThatThrownBy(() -> server.awaitReady(DEADLINE))
                .isInstanceOf(IOException.class)
                .hasMessageContainingAll("the server process ended", "arguments: [fail, --exit-with-parent]");
    }
}
