package baton.cluster;

import baton.kv.TemporaryDirectory;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Processes that work together, and a directory for their files and logs. The processes end with this one, however it ends; the
 * directory is removed then, unless this process is killed.
 */
public final class ProcessGroup implements AutoCloseable {
    private static final Duration STOP_DEADLINE = Duration.ofSeconds(10);

    private final TemporaryDirectory directory;
    private final List<ChildProcess> members = new CopyOnWriteArrayList<>();
    private final AtomicBoolean closed = new AtomicBoolean();
    private final Thread onSignal = Thread.ofPlatform().name("stop-processes").unstarted(this::stop);

    private ProcessGroup(TemporaryDirectory directory) {
        this.directory = directory;
    }

    /**
     * A group without processes.
     *
     * @throws IOException if there is no directory for it, or this process is ending
     */
    public static ProcessGroup create() throws IOException {
        ProcessGroup group = new ProcessGroup(TemporaryDirectory.create("baton-"));
        try {
            Runtime.getRuntime().addShutdownHook(group.onSignal);
        } catch (IllegalStateException e) {
            group.directory.close();
            throw new IOException("this process is ending, and starts no others", e);
        }
        return group;
    }

    /** Readable by this user only. */
    public Path directory() {
        return directory.path();
    }

    /**
     * Starts a server of Baton; does not wait for it.
     *
     * @param name names it in messages, and its log
     * @param arguments the command and its options
     */
    public ServerProcess serve(String name, JavaCommand baton, List<String> arguments) throws IOException {
        ServerProcess server = ServerProcess.start(name, baton, arguments, log(name));
        members.add(server.process());
        return server;
    }

    private Path log(String name) {
        return directory().resolve(name + ".log");
    }

    /** The processes, in the order in which they were started. */
    public List<ChildProcess> members() {
        return List.copyOf(members);
    }

    /** Completes with a description when one of the processes ends. */
    public CompletableFuture<String> anyExit() {
        List<CompletableFuture<String>> exits =
                members.stream().map(ChildProcess::onExit).toList();
        return CompletableFuture.anyOf(exits.toArray(CompletableFuture[]::new)).thenApply(String::valueOf);
    }

    /** Whether the processes have been asked to stop, by {@link #close()} or because this process ends. */
    public boolean isStopping() {
        return closed.get();
    }

    @Override
    public void close() {
        stop();
        try {
            Runtime.getRuntime().removeShutdownHook(onSignal);
        } catch (IllegalStateException e) {
            // This process is ending: the hook runs too, and only one of both stops the processes.
        }
    }

    private void stop() {
        if (closed.getAndSet(true)) {
            return;
        }
        members.reversed().forEach(ChildProcess::askToStop);
        members.forEach(member -> member.awaitEnd(STOP_DEADLINE));
        directory.close();
    }
}
