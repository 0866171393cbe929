package baton.cli;

import picocli.CommandLine.Command;

/** {@code baton bench}: measurements. */
@Command(
        name = "bench",
        description = "Measures how fast Baton is.",
        mixinStandardHelpOptions = true,
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {
            BenchEngineCommand.class,
            BenchFirstTokenCommand.class,
            BenchNeighboursCommand.class,
            BenchTransferCommand.class,
            BenchHandoverCommand.class,
            BenchOffloadingCommand.class,
            BenchStoreCommand.class,
            BenchConnectorsCommand.class,
            BenchRouterCommand.class,
            BenchServeCommand.class,
            BenchDisaggCommand.class,
            BenchGrammarCommand.class,
            BenchGpuCommand.class
        })
final class BenchCommand {}
