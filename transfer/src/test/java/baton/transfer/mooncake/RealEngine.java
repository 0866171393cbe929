package baton.transfer.mooncake;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A process with Mooncake's own engine and one buffer. The environment variable {@code BATON_MOONCAKE_PYTHON} names an interpreter that
 * has the package {@code mooncake}.
 */
final class RealEngine implements AutoCloseable {
    private static final String VARIABLE = "BATON_MOONCAKE_PYTHON";
    private static final String ANSWER = "answer ";

    private final JsonMapper json = JsonMapper.builder().build();
    private final Process process;
    private final BufferedReader out;
    private final BufferedWriter in;
    private final JsonNode started;
    private final String name;

    private RealEngine(Process process, String name, String metadata) throws IOException {
        this.process = process;
        this.out = process.inputReader();
        this.in = process.outputWriter();
        this.started = answer();
        this.name = metadata.equals(MetadataSource.P2P) ? name + ":" + rpcPort() : name;
    }

    /** The interpreter; the test is skipped where there is none. */
    static String python() throws IOException {
        Optional<String> python = Optional.ofNullable(System.getenv(VARIABLE));
        assumeTrue(
                python.isPresent(), VARIABLE + " is not set: it names a Python interpreter with the package mooncake");
        return python.get();
    }

    /**
     * Starts one.
     *
     * @param directory for its log and script
     * @param environment more variables
     */
    static RealEngine start(Path directory, String name, String metadata, int bytes, Map<String, String> environment)
            throws IOException {
        Path script = directory.resolve("engine.py");
        try (InputStream source = Objects.requireNonNull(RealEngine.class.getResourceAsStream("engine.py"))) {
            Files.write(script, source.readAllBytes());
        }
        ProcessBuilder builder = new ProcessBuilder(
                        python(), script.toString(), name, metadata, Integer.toString(bytes))
                .redirectError(ProcessBuilder.Redirect.appendTo(
                        directory.resolve("engine.log").toFile()));
        builder.environment().putAll(environment);
        Process process = builder.start();
        try {
            return new RealEngine(process, name, metadata);
        } catch (IOException | RuntimeException e) {
            process.destroyForcibly();
            throw e;
        }
    }

    /** 0 if it is initialized and its buffer registered. */
    int status() {
        return started.get(0).intValue();
    }

    int rpcPort() {
        return started.get(1).intValue();
    }

    /** Of its buffer. */
    long address() {
        return started.get(2).longValue();
    }

    /** The segment's name. */
    String name() {
        return name;
    }

    JsonNode call(Object... command) throws IOException {
        in.write(json.writeValueAsString(command));
        in.newLine();
        in.flush();
        return answer();
    }

    private JsonNode answer() throws IOException {
        while (true) {
            String line = out.readLine();
            if (line == null) {
                throw new IOException("Mooncake's engine has ended");
            }
            if (line.startsWith(ANSWER)) {
                return json.readTree(line.substring(ANSWER.length()));
            }
        }
    }

    /** Ends the process as it is. */
    void kill() throws InterruptedException {
        process.destroyForcibly();
        if (!process.waitFor(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the engine's process has not ended");
        }
    }

    @Override
    public void close() throws IOException {
        // The end of its input ends it in order.
        try {
            in.close();
            if (!process.waitFor(10, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (IOException | InterruptedException e) {
            process.destroyForcibly();
        }
    }
}
