package baton.bench.disagg;

import baton.bench.OtherProgram;
import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.cluster.ClusterConnector;
import baton.cluster.JavaCommand;
import baton.cluster.LocalCluster;
import baton.cluster.LocalCluster.Layout;
import baton.cluster.ProcessGroup;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A setup that is measured: processes on this host that end when it is closed, or servers that run already.
 *
 * @param processes that were started for it
 */
record Servers(Setup setup, String url, Optional<ProcessGroup> processes) implements AutoCloseable {
    private static final Duration START = Duration.ofMinutes(2);

    /**
     * Cores of this host.
     *
     * @param all cores of a colocated instance
     * @param prefill some of them
     * @param decode the others
     */
    record Cores(List<Integer> all, List<Integer> prefill, List<Integer> decode) {
        /** The processors that this process may use, the lower half for prefill. One alone is shared. */
        static Cores halves() {
            int processors = Runtime.getRuntime().availableProcessors();
            List<Integer> all = IntStream.range(0, processors).boxed().toList();
            return processors == 1
                    ? new Cores(all, all, all)
                    : new Cores(all, all.subList(0, processors / 2), all.subList(processors / 2, processors));
        }
    }

    /**
     * The options of started processes.
     *
     * @param baton runs Baton
     * @param maxModelLen positions of a request
     * @param shortBytes prompts with fewer bytes are left to the decode instance
     */
    record Start(
            JavaCommand baton,
            Path model,
            LocalCluster.Connector connector,
            Cores cores,
            int maxModelLen,
            int shortBytes) {
        /** Options of each instance. */
        List<String> serve() {
            return List.of("--max-model-len", Integer.toString(maxModelLen), "--disable-uvicorn-access-log");
        }
    }

    /** Servers that run already. */
    static Servers at(Setup setup, String url) {
        return new Servers(setup, url, Optional.empty());
    }

    /** Starts one instance and waits until it is ready. */
    static Servers colocated(Setup setup, Start start) throws IOException {
        List<String> arguments = new ArrayList<>(List.of("serve", start.model.toString(), "--port", "0"));
        arguments.addAll(start.serve());
        arguments.addAll(List.of("--threads", Integer.toString(start.cores.all.size())));
        setup.budget()
                .ifPresent(budget -> arguments.addAll(List.of("--max-num-batched-tokens", Integer.toString(budget))));
        ProcessGroup group = ProcessGroup.create();
        try {
            String url = group.serve("colocated", pinned(start.baton, start.cores.all), arguments)
                    .awaitReady(START)
                    .toString();
            return new Servers(setup, url, Optional.of(group));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            group.close();
            throw new IOException("interrupted", e);
        } catch (IOException | RuntimeException e) {
            group.close();
            throw e;
        }
    }

    /** Starts a prefill instance, a decode instance and a router, and waits until all are ready. */
    static Servers disaggregated(Setup setup, Start start) throws IOException {
        ClusterConnector connector = start.connector.with(start.serve());
        Layout layout = new Layout(
                pinned(start.baton, start.cores.prefill),
                pinned(start.baton, start.cores.decode),
                start.baton.forRouter(),
                start.cores.prefill.size(),
                List.of("--local-prefill-threshold", Integer.toString(start.shortBytes)));
        try {
            LocalCluster cluster = LocalCluster.start(layout, start.model, connector, 0, true);
            return new Servers(setup, cluster.router().toString(), Optional.of(cluster.processes()));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    /** All threads of the process on these cores, those of the JVM too, where the system has a {@code taskset}. */
    private static JavaCommand pinned(JavaCommand baton, List<Integer> cores) {
        Optional<Path> taskset = OtherProgram.find("taskset");
        if (taskset.isEmpty()) {
            return baton;
        }
        List<String> command = new ArrayList<>(List.of(
                taskset.get().toString(),
                "-c",
                cores.stream().map(String::valueOf).collect(Collectors.joining(","))));
        command.addAll(baton.jvm());
        return new JavaCommand(command, baton.mainClass());
    }

    Endpoint endpoint() {
        return Endpoint.of(Backend.OPENAI, url);
    }

    /** @throws IOException with the end of its log, if a process has ended */
    void requireAlive() throws IOException {
        for (var each : processes.map(ProcessGroup::members).orElse(List.of())) {
            if (!each.isAlive()) {
                throw new IOException(each.describeExit());
            }
        }
    }

    @Override
    public void close() {
        processes.ifPresent(ProcessGroup::close);
    }
}
