package baton.cli;

import baton.bench.ProxyCommand;
import baton.bench.RouterBench;
import baton.kv.ConfigException;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.JsonNode;

/** {@code baton bench router}: the router's cost. */
@Command(
        name = "router",
        description =
                "Measures the router's cost in front of instances that compute nothing, beside asking them directly"
                        + " and, where it is installed, nginx.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchRouterCommand implements Callable<Integer> {
    @Option(
            names = "--requests",
            defaultValue = "5000",
            paramLabel = "N",
            description = "Requests of a round (default: ${DEFAULT-VALUE}).")
    private int requests;

    @Option(
            names = "--prompt-tokens",
            defaultValue = "100",
            paramLabel = "N",
            description = "Words of each prompt (default: ${DEFAULT-VALUE}).")
    private int promptTokens;

    @Option(
            names = "--events",
            defaultValue = "16",
            paramLabel = "N",
            description = "Events of each streamed answer (default: ${DEFAULT-VALUE}).")
    private int events;

    @Option(
            names = "--rounds",
            defaultValue = "5",
            paramLabel = "N",
            description = "Rounds of each case (default: ${DEFAULT-VALUE}).")
    private int rounds;

    @Option(
            names = "--streams",
            defaultValue = "2000",
            paramLabel = "N",
            description = "Answers streamed at once (default: ${DEFAULT-VALUE}).")
    private int streams;

    @Option(
            names = "--memory-requests",
            defaultValue = "200000",
            paramLabel = "N",
            description = "Requests that the router's memory is watched over (default: ${DEFAULT-VALUE}).")
    private int memoryRequests;

    @Option(
            names = "--token-ids",
            description = "The decode instance sends token ids to a router that asks for them, as Baton's do.")
    private boolean tokenIds;

    @Option(
            names = "--beside",
            paramLabel = "NAME=COMMAND",
            description =
                    "Another P/D proxy to measure in the same run; in its command {port} is where to listen, {prefill} and"
                            + " {decode} are the ports of the instances. May be repeated.")
    private List<String> beside = List.of();

    @Option(
            names = "--router-java-option",
            paramLabel = "OPTION",
            description = "An option of the JVM for the router's process alone, such as a collector. May be repeated.")
    private List<String> routerJavaOptions = List.of();

    @Option(
            names = "--index",
            arity = "0..1",
            fallbackValue = "1000000",
            paramLabel = "BLOCKS",
            description = "Measure only the index of the blocks that instances hold, with so many (default: 1000000).")
    private @Nullable Integer index;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (index != null) {
            if (index < 1 || index > KvIndexBench.MOST_BLOCKS) {
                throw ConfigException.unsupported("index", index, "1 to " + KvIndexBench.MOST_BLOCKS);
            }
            output.measure(KvIndexBench.FIGURES, new KvIndexBench(index)::run);
            return 0;
        }
        RouterBench bench = new RouterBench(
                requests,
                promptTokens,
                events,
                rounds,
                streams,
                memoryRequests,
                tokenIds,
                beside.stream().map(ProxyCommand::parse).toList(),
                output::progress,
                CompilerThreads::stepBack);
        JsonNode figures = output.measure(
                RouterBench.FIGURES, json -> bench.run(Baton.command().withOptions(routerJavaOptions), json));
        boolean lost = figures.path("failures")
                .valueStream()
                .anyMatch(each -> each.path("name").asString().equals(RouterBench.ROUTER));
        return figures.path("streams_right").asInt() == streams && !lost ? 0 : 1;
    }
}
