package baton.cli;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/**
 * A prefill instance, a decode instance and a router on this host, each a process of its own, handing KV caches over through a
 * directory or from memory to memory. They end with this process, however it ends.
 */
final class LocalCluster implements AutoCloseable {
    private static final Duration START_DEADLINE = Duration.ofMinutes(2);
    private static final Duration STOP_DEADLINE = Duration.ofSeconds(10);

    private final Path directory;
    private final List<Member> members = new CopyOnWriteArrayList<>();
    private final AtomicBoolean closed = new AtomicBoolean();
    private final Thread onSignal = Thread.ofPlatform().name("stop-cluster").unstarted(this::stop);
    private URI prefill = URI.create("http://127.0.0.1");
    private URI decode = URI.create("http://127.0.0.1");
    private URI router = URI.create("http://127.0.0.1");

    /** The connectors that a cluster of one host can be made of; named as {@code kv_connector} is. */
    enum Connector {
        SharedStorageConnector("content-keyed") {
            @Override
            List<String> settings(Path shared) {
                return List.of(EXTRA + "shared_storage_path", shared.toString());
            }
        },
        NixlConnector("kv_transfer_params") {
            @Override
            List<String> settings(Path shared) {
                // Both instances are on this host, so neither can have the usual port.
                return List.of(EXTRA + "side_channel_host", "127.0.0.1", EXTRA + "side_channel_port", "0");
            }
        };

        private static final String EXTRA = "--kv-transfer-config.kv_connector_extra_config.";

        private final String flow;

        Connector(String flow) {
            this.flow = flow;
        }

        /** Options of {@code serve} beyond those that all connectors have. */
        abstract List<String> settings(Path shared);
    }

    private LocalCluster(Path directory) {
        this.directory = directory;
    }

    /**
     * Starts all three and waits until they are ready.
     *
     * @param connector how KV caches are handed over
     * @param routerPort port of the router, 0 for any free one
     */
    static LocalCluster start(Path model, Connector connector, int routerPort)
            throws IOException, InterruptedException {
        LocalCluster cluster = new LocalCluster(Files.createTempDirectory("baton-"));
        Runtime.getRuntime().addShutdownHook(cluster.onSignal);
        try {
            Path shared = Files.createDirectory(cluster.directory.resolve("kv"));
            Member prefill = cluster.serve("prefill", model, "kv_producer", connector, shared);
            Member decode = cluster.serve("decode", model, "kv_consumer", connector, shared);
            cluster.prefill = prefill.awaitReady();
            cluster.decode = decode.awaitReady();
            cluster.router = cluster.spawn(
                            "router",
                            List.of(
                                    "route",
                                    "--port",
                                    Integer.toString(routerPort),
                                    "--prefill",
                                    cluster.prefill.toString(),
                                    "--decode",
                                    cluster.decode.toString(),
                                    "--flow",
                                    connector.flow))
                    .awaitReady();
            return cluster;
        } catch (IOException | InterruptedException | RuntimeException e) {
            cluster.close();
            throw e;
        }
    }

    URI prefill() {
        return prefill;
    }

    URI decode() {
        return decode;
    }

    URI router() {
        return router;
    }

    /** Where the processes write their logs. */
    Path directory() {
        return directory;
    }

    /** Completes with a description when one of the processes ends. */
    CompletableFuture<String> anyExit() {
        List<CompletableFuture<String>> exits = members.stream()
                .map(member -> member.process.onExit().thenApply(ended -> member.describeExit()))
                .toList();
        return CompletableFuture.anyOf(exits.toArray(CompletableFuture[]::new)).thenApply(String::valueOf);
    }

    private Member serve(String name, Path model, String role, Connector connector, Path shared) throws IOException {
        List<String> arguments = new ArrayList<>(List.of(
                "serve",
                model.toString(),
                "--port",
                "0",
                "--threads",
                // Instances that share cores slow each other down when each computes on all of them.
                Integer.toString(Math.max(1, Runtime.getRuntime().availableProcessors() / 2)),
                "--kv-transfer-config.kv_connector",
                connector.name(),
                "--kv-transfer-config.kv_role",
                role,
                "--kv-transfer-config.kv_load_failure_policy",
                "recompute"));
        arguments.addAll(connector.settings(shared));
        return spawn(name, arguments);
    }

    private Member spawn(String name, List<String> arguments) throws IOException {
        List<String> command =
                new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java")));
        // This process's own JVM options, its AOT cache among them.
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), Baton.class.getName()));
        command.addAll(arguments);
        command.add("--exit-with-parent");
        Path log = directory.resolve(name + ".log");
        Process process =
                new ProcessBuilder(command).redirectError(log.toFile()).start();
        Member member = new Member(name, process, log);
        members.add(member);
        return member;
    }

    /** True once the processes have been told to stop, by {@link #close()} or because this process was. */
    boolean isStopping() {
        return closed.get();
    }

    @Override
    public void close() {
        stop();
        try {
            Runtime.getRuntime().removeShutdownHook(onSignal);
        } catch (IllegalStateException e) {
            // This process is ending, and so runs the hook, which has nothing left to do or does it all.
        }
    }

    private void stop() {
        if (closed.getAndSet(true)) {
            return;
        }
        // The end of its standard input tells each process to stop.
        for (Member member : members.reversed()) {
            try {
                member.process.getOutputStream().close();
            } catch (IOException e) {
                member.process.destroy();
            }
        }
        for (Member member : members) {
            try {
                if (!member.process.waitFor(STOP_DEADLINE)) {
                    member.process.destroyForcibly();
                }
            } catch (InterruptedException e) {
                member.process.destroyForcibly();
                Thread.currentThread().interrupt();
            }
        }
        delete(directory);
    }

    /** Removes a directory with all that is in it, as far as it can. */
    static void delete(Path directory) {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        } catch (IOException | UncheckedIOException e) {
            System.err.println("baton: could not remove " + directory + ": " + e.getMessage());
        }
    }

    /** One process. */
    private static final class Member {
        private final String name;
        private final Process process;
        private final Path log;
        private final CompletableFuture<URI> ready = new CompletableFuture<>();

        private Member(String name, Process process, Path log) {
            this.name = name;
            this.process = process;
            this.log = log;
            // A virtual thread that reads a pipe holds the processor that it runs on.
            Thread.ofPlatform().daemon().name(name + "-output").start(this::readOutput);
        }

        private void readOutput() {
            try (BufferedReader output = process.inputReader(StandardCharsets.UTF_8)) {
                for (String line = output.readLine(); line != null; line = output.readLine()) {
                    if (line.startsWith(Service.READY)) {
                        ready.complete(URI.create(line.substring(Service.READY.length())));
                    }
                }
                ready.completeExceptionally(new IOException("its output ended"));
            } catch (IOException | IllegalArgumentException e) {
                ready.completeExceptionally(e);
            }
        }

        private URI awaitReady() throws InterruptedException {
            try {
                return ready.get(START_DEADLINE.toSeconds(), TimeUnit.SECONDS);
            } catch (TimeoutException e) {
                throw new CommandFailedException("the " + name + " process was not ready within "
                        + START_DEADLINE.toSeconds() + " s; its log ends:\n" + logTail());
            } catch (ExecutionException e) {
                throw new CommandFailedException(describeExit());
            }
        }

        private String describeExit() {
            return "the " + name + " process ended; its log ends:\n" + logTail();
        }

        private String logTail() {
            try {
                List<String> lines = Files.readAllLines(log);
                return "  " + String.join("\n  ", lines.subList(Math.max(0, lines.size() - 15), lines.size()));
            } catch (IOException e) {
                return "  (" + log + " cannot be read: " + e.getMessage() + ")";
            }
        }
    }
}
