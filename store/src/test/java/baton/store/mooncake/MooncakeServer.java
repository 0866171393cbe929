package baton.store.mooncake;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.FreePorts;
import baton.testkit.InstalledProgram;
import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/**
 * A real {@code mooncake_master} and a real REST service with 64 MiB for objects, both on free ports, from the package mooncake of the Python
 * that the environment variable {@value #VARIABLE} names. The service can be killed, halted and started again; its objects end with it.
 */
public final class MooncakeServer implements AutoCloseable {
    public static final String VARIABLE = "BATON_MOONCAKE_PYTHON";
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private final Path directory;
    private final String python;
    private final int masterPort;
    private final int servicePort;
    private final InstalledProgram master;
    private InstalledProgram service;

    private MooncakeServer(Path directory, String python, Path program, Duration lease)
            throws IOException, InterruptedException {
        this.directory = directory;
        this.python = python;
        int ports = FreePorts.inARow(3);
        masterPort = ports;
        servicePort = ports + 2;
        master = start(
                        "master.log",
                        program.toString(),
                        "--rpc_port=" + ports,
                        "--rpc_address=127.0.0.1",
                        "--metrics_port=" + (ports + 1),
                        "--default_kv_lease_ttl=" + lease.toMillis(),
                        // Seconds after which a service that was killed is forgotten, and its objects.
                        "--client_ttl=1")
                .awaitListening(masterPort);
        try {
            Files.writeString(directory.resolve("mooncake.json"), """
                    {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
                     "global_segment_size": 67108864, "local_buffer_size": 33554432, "protocol": "tcp",
                     "device_name": "", "master_server_address": "127.0.0.1:%d"}
                    """.formatted(masterPort));
            service = launch();
        } catch (IOException e) {
            master.kill();
            throw e;
        }
    }

    /**
     * Starts both and waits until they answer; skips the test if there is no package.
     *
     * @param lease that a reader has on an object
     */
    public static MooncakeServer start(Path directory, Duration lease) throws IOException, InterruptedException {
        Optional<String> python = Optional.ofNullable(System.getenv(VARIABLE));
        assumeTrue(python.isPresent(), VARIABLE + " is not set: the path of a Python with the package mooncake");
        Optional<Path> program = program(python.get());
        assumeTrue(program.isPresent(), python.get() + " (" + VARIABLE + ") has no package mooncake");
        return new MooncakeServer(directory, python.get(), program.get(), lease);
    }

    /** The program of the master, which is not the script of its name, so that it is the process that is ended. */
    private static Optional<Path> program(String python) throws IOException, InterruptedException {
        Process asked = new ProcessBuilder(
                        python,
                        "-c",
                        "import importlib.util as u; print(u.find_spec('mooncake').submodule_search_locations[0])")
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        String path = new String(asked.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
        if (!asked.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS) || asked.exitValue() != 0) {
            asked.destroyForcibly();
            return Optional.empty();
        }
        return Optional.of(Path.of(path, "mooncake_master")).filter(Files::isExecutable);
    }

    private InstalledProgram start(String log, String... command) throws IOException {
        return InstalledProgram.start(directory.resolve(log), List.of(command));
    }

    private InstalledProgram launch() throws IOException {
        return start(
                        "service.log",
                        python,
                        "-m",
                        "mooncake.mooncake_store_service",
                        "--config",
                        "mooncake.json",
                        "--port",
                        Integer.toString(servicePort))
                .awaitListening(servicePort);
    }

    /** Of the REST service. */
    public URI url() {
        return URI.create("http://127.0.0.1:" + servicePort);
    }

    /** {@code master_server_address}. */
    public String masterAddress() {
        return "127.0.0.1:" + masterPort;
    }

    /** Kills the REST service, and with it all objects. */
    public void kill() throws InterruptedException {
        service.kill();
    }

    public void restart() throws IOException {
        service = launch();
    }

    /** The service answers nothing until {@link #resume}. */
    public void halt() throws IOException, InterruptedException {
        service.signal("-STOP");
    }

    public void resume() throws IOException, InterruptedException {
        service.signal("-CONT");
    }

    @Override
    public void close() throws InterruptedException {
        kill();
        master.kill();
    }
}
