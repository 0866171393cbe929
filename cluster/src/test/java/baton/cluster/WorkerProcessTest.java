package baton.cluster;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.TemporaryDirectory;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class WorkerProcessTest {
    private static final Duration DEADLINE = Duration.ofMinutes(1);
    private static final JavaCommand COMMAND = JavaCommand.likeThisProcess(WorkerProcessTest.class.getName());

    /** The worker: returns each request, or fails on request. */
    public static void main(String[] args) throws IOException {
        System.out.println("output that is no answer");
        BufferedReader requests = WorkerProcess.requests();
        for (String request = requests.readLine(); request != null; request = requests.readLine()) {
            if (request.equals("fail")) {
                System.err.println("the reason");
                System.exit(3);
            }
            WorkerProcess.answer(args[0] + " " + request);
        }
    }

    @Test
    void requestsAreAnsweredInOrder() throws IOException {
        try (WorkerProcess worker = WorkerProcess.start("echo", COMMAND, List.of("said"))) {
            worker.send("one");
            worker.send("two");
            assertThat(worker.receive(DEADLINE)).isEqualTo("said one");
            assertThat(worker.receive(DEADLINE)).isEqualTo("said two");
        }
    }

    @Test
    void aWorkerThatFailsIsReportedWithItsLog() throws IOException {
        try (WorkerProcess worker = WorkerProcess.start("echo", COMMAND, List.of("said"))) {
            worker.send("fail");
            assertThatThrownBy(() -> worker.receive(DEADLINE))
                    .isInstanceOf(IOException.class)
                    .hasMessageContainingAll("the echo process ended", "the reason");
        }
    }

    @Test
    void aMissingAnswerIsReportedAtTheDeadline() throws IOException {
        try (WorkerProcess worker = WorkerProcess.start("echo", COMMAND, List.of("said"))) {
            assertThatThrownBy(() -> worker.receive(Duration.ofMillis(1)))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("the echo process has not answered within");
        }
    }

    @Test
    void aChildEndsWhenItsInputEnds(@TempDir Path directory) throws IOException, InterruptedException {
        ChildProcess child = ChildProcess.start(
                "child", COMMAND.with(List.of("said")), directory.resolve("log"), new ChildProcess.Output() {
                    @Override
                    public void line(String line) {}

                    @Override
                    public void end() {}
                });
        child.askToStop();
        assertThat(child.awaitExit(DEADLINE)).isEqualTo(OptionalInt.of(0));
        assertThat(child.isAlive()).isFalse();
    }

    @Test
    void aTemporaryDirectoryIsRemovedWithItsFiles() throws IOException {
        TemporaryDirectory directory = TemporaryDirectory.create("baton-");
        Files.writeString(
                Files.createDirectory(directory.path().resolve("inner")).resolve("file"), "text");
        directory.close();
        assertThat(directory.path()).doesNotExist();
        directory.close();
    }
}
