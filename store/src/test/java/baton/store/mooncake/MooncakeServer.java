package baton.store.mooncake;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.Ticker;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

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
    private final Process master;
    private Process service;

    private MooncakeServer(Path directory, String python, Path program, Duration lease) throws IOException {
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
                "--client_ttl=1");
        try {
            await(master, masterPort, "master.log");
            Files.writeString(directory.resolve("mooncake.json"), """
                    {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
                     "global_segment_size": 67108864, "local_buffer_size": 33554432, "protocol": "tcp",
                     "device_name": "", "master_server_address": "127.0.0.1:%d"}
                    """.formatted(masterPort));
            service = launch();
        } catch (IOException e) {
            master.destroyForcibly();
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

    private Process start(String log, String... command) throws IOException {
        return new ProcessBuilder(new ArrayList<>(List.of(command)))
                .directory(directory.toFile())
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve(log).toFile())
                .start();
    }

    private Process launch() throws IOException {
        Process started = start(
                "service.log",
                python,
                "-m",
                "mooncake.mooncake_store_service",
                "--config",
                "mooncake.json",
                "--port",
                Integer.toString(servicePort));
        await(started, servicePort, "service.log");
        return started;
    }

    private void await(Process process, int port, String log) throws IOException {
        Deadline deadline = Deadline.after(Ticker.system(), PATIENCE);
        while (!accepts(port)) {
            if (deadline.isOver() || !process.isAlive()) {
                process.destroyForcibly();
                throw new IOException("not started: " + Files.readString(directory.resolve(log)));
            }
            LockSupport.parkNanos(5_000_000);
        }
    }

    private static boolean accepts(int port) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 1000);
            return true;
        } catch (IOException _) {
            return false;
        }
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
        service.destroyForcibly();
        service.waitFor(10, TimeUnit.SECONDS);
    }

    public void restart() throws IOException {
        service = launch();
    }

    /** The service answers nothing until {@link #resume}. */
    public void halt() throws IOException, InterruptedException {
        signal("-STOP");
    }

    public void resume() throws IOException, InterruptedException {
        signal("-CONT");
    }

    private void signal(String signal) throws IOException, InterruptedException {
        new ProcessBuilder("kill", signal, Long.toString(service.pid())).start().waitFor(10, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws InterruptedException {
        kill();
        master.destroyForcibly();
        master.waitFor(10, TimeUnit.SECONDS);
    }
}
