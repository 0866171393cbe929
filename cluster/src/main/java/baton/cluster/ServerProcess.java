package baton.cluster;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * A command of Baton that serves ({@code serve}, {@code route}), in a process of its own. It ends with this process.
 *
 * <p>A server says on standard output where it listens: first {@link #REGISTRATIONS} with the address, if instances may register
 * with it, then {@link #READY} with its URL.
 */
public final class ServerProcess {
    public static final String READY = "Ready at ";
    public static final String REGISTRATIONS = "Registrations at tcp://";

    /** The option that makes a router wait for {@link #tellInstances} before it is ready. */
    static final String INSTANCES_FROM_PARENT = "--instances-from-parent";

    /** The option that makes a server exit at the end of its standard input. */
    private static final String EXIT_WITH_PARENT = "--exit-with-parent";

    private final String name;
    private final ChildProcess process;
    private final Addresses addresses;

    private ServerProcess(String name, ChildProcess process, Addresses addresses) {
        this.name = name;
        this.process = process;
        this.addresses = addresses;
    }

    /**
     * Starts a server; does not wait for it.
     *
     * @param name names it in messages
     * @param baton runs Baton
     * @param arguments the command and its options
     * @param log file that its log is appended to
     */
    public static ServerProcess start(String name, JavaCommand baton, List<String> arguments, Path log)
            throws IOException {
        List<String> all = new ArrayList<>(arguments);
        all.add(EXIT_WITH_PARENT);
        Addresses addresses = new Addresses();
        return new ServerProcess(name, ChildProcess.start(name, baton.with(all), log, addresses), addresses);
    }

    /** The addresses that the server has printed. */
    private static final class Addresses implements ChildProcess.Output {
        final CompletableFuture<URI> ready = new CompletableFuture<>();
        final CompletableFuture<URI> registrations = new CompletableFuture<>();

        @Override
        public void line(String line) {
            if (line.startsWith(REGISTRATIONS)) {
                complete(registrations, "tcp://" + line.substring(REGISTRATIONS.length()));
            } else if (line.startsWith(READY)) {
                complete(ready, line.substring(READY.length()));
            }
        }

        private static void complete(CompletableFuture<URI> future, String address) {
            try {
                future.complete(URI.create(address));
            } catch (IllegalArgumentException e) {
                future.completeExceptionally(e);
            }
        }

        @Override
        public void end() {
            IOException ended = new IOException("its output ended");
            ready.completeExceptionally(ended);
            registrations.completeExceptionally(ended);
        }
    }

    /**
     * Names its instances to a router that was started with {@link #INSTANCES_FROM_PARENT}.
     *
     * @throws IOException with the end of its log if it does not read them
     */
    void tellInstances(URI prefill, URI decode) throws IOException {
        try {
            OutputStream input = process.input();
            input.write("prefill %s%ndecode %s%n%n".formatted(prefill, decode).getBytes(StandardCharsets.UTF_8));
            input.flush();
        } catch (IOException e) {
            throw new IOException(process.describeExit(), e);
        }
    }

    /** The process itself. */
    public ChildProcess process() {
        return process;
    }

    /**
     * The URL of the server; waits until it is ready.
     *
     * @throws IOException with the end of its log if it is not within the deadline
     */
    public URI awaitReady(Duration deadline) throws IOException, InterruptedException {
        return await(addresses.ready, deadline);
    }

    /**
     * The address where instances register; waits until it is known.
     *
     * @throws IOException with the end of its log if it is not within the deadline
     */
    public URI awaitRegistrations(Duration deadline) throws IOException, InterruptedException {
        return await(addresses.registrations, deadline);
    }

    private URI await(CompletableFuture<URI> address, Duration deadline) throws IOException, InterruptedException {
        try {
            return address.get(deadline.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new IOException(
                    "the " + name + " process was not ready within " + deadline.toSeconds() + " s; its log ends:\n"
                            + process.logTail(),
                    e);
        } catch (ExecutionException e) {
            throw new IOException(process.describeExit(), e);
        }
    }
}
