package baton.cluster;

import baton.kv.TemporaryDirectory;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A process that does part of a measurement: requests are lines of its standard input, answers lines of its standard output that begin
 * with a prefix; other output is dropped. It ends with this process, as its requests end then.
 */
public final class WorkerProcess implements AutoCloseable {
    private static final String ANSWER = "answer ";
    private static final Duration STOP_DEADLINE = Duration.ofSeconds(30);

    private final String name;
    private final TemporaryDirectory directory;
    private final ChildProcess process;
    private final PrintStream requests;
    /** Empty at the end. */
    private final BlockingQueue<Optional<String>> answers;

    private WorkerProcess(
            String name, TemporaryDirectory directory, ChildProcess process, BlockingQueue<Optional<String>> answers) {
        this.name = name;
        this.directory = directory;
        this.process = process;
        this.requests = new PrintStream(process.input(), true, StandardCharsets.UTF_8);
        this.answers = answers;
    }

    /**
     * Starts a worker; does not wait for it.
     *
     * @param name names it in messages
     */
    public static WorkerProcess start(String name, JavaCommand command, List<String> arguments) throws IOException {
        TemporaryDirectory directory = TemporaryDirectory.create("baton-");
        BlockingQueue<Optional<String>> answers = new LinkedBlockingQueue<>();
        ChildProcess.Output output = new ChildProcess.Output() {
            @Override
            public void line(String line) {
                if (line.startsWith(ANSWER)) {
                    answers.add(Optional.of(line.substring(ANSWER.length())));
                }
            }

            @Override
            public void end() {
                answers.add(Optional.empty());
            }
        };
        try {
            ChildProcess process = ChildProcess.start(
                    name, command.with(arguments), directory.path().resolve("log"), output);
            return new WorkerProcess(name, directory, process, answers);
        } catch (IOException e) {
            directory.close();
            throw e;
        }
    }

    /** Sends a request. If the worker has ended, {@link #receive} says so. */
    public void send(String request) {
        requests.println(request);
    }

    /**
     * The next answer.
     *
     * @throws IOException with the end of the worker's log if it has ended or does not answer within the deadline
     */
    public String receive(Duration deadline) throws IOException {
        try {
            Optional<String> answer = answers.poll(deadline.toNanos(), TimeUnit.NANOSECONDS);
            if (answer == null) {
                throw new IOException("the " + name + " process has not answered within " + deadline.toSeconds()
                        + " s; its log ends:\n" + process.logTail());
            }
            return answer.orElseThrow(() -> new IOException(process.describeExit()));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    /** Ends the process. */
    @Override
    public void close() {
        process.askToStop();
        process.awaitEnd(STOP_DEADLINE);
        directory.close();
    }

    /** Sends an answer; called in the worker. */
    public static void answer(String line) {
        System.out.println(ANSWER + line);
        System.out.flush();
    }

    /** The worker's requests; called in the worker. */
    public static BufferedReader requests() {
        return new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    }
}
