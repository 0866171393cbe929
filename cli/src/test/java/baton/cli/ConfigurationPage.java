package baton.cli;

import baton.kv.KvEventsConfig;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.connector.KvConnector;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.ServiceLoader;
import java.util.TreeMap;
import java.util.stream.Collectors;
import picocli.CommandLine;
import picocli.CommandLine.Model.ArgSpec;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Model.OptionSpec;

/** Writes docs/configuration.md from the program's options and the connectors' settings. */
final class ConfigurationPage {
    /** Variables that main code or the launcher reads, and their effects. */
    static final Map<String, String> VARIABLES = new TreeMap<>(Map.ofEntries(
            Map.entry("BATON_JAVA_HOME", "The launcher's JDK."),
            Map.entry("BATON_JAVA_OPTS", "More options of the launcher's JVM, such as `-Xmx4g`."),
            Map.entry("BATON_CLASSPATH", "More jars for the launcher: connectors of your own."),
            Map.entry(
                    "BATON_CACHE",
                    "Where the launcher of [an archive](distribution.md) keeps the AOT cache; default: beside the jars."),
            Map.entry(
                    "BATON_KERNELS",
                    "`amx`, `avx512_bf16`, `avx512`, `avx2` or `libtorch`: forces the [kernels](serving.md#kernels)."),
            Map.entry("ONEDNN_MAX_CPU_ISA", "oneDNN's; caps the choice of kernels too."),
            Map.entry("ATEN_CPU_CAPABILITY", "LibTorch's; caps the choice of kernels too."),
            Map.entry(
                    "PYTHONHASHSEED",
                    "Seed of block hashes and of LMCache's keys, as in vLLM; the same for all instances that share a store."),
            Map.entry("VLLM_HOST_IP", "This host's address, for KV events, where it cannot be found out."),
            Map.entry("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "`0`: hashes in KV events are 32 bytes, not a number."),
            Map.entry("VLLM_NIXL_SIDE_CHANNEL_HOST", "`side_channel_host` of `NixlConnector`, unless it is set."),
            Map.entry("VLLM_NIXL_SIDE_CHANNEL_PORT", "`side_channel_port`, likewise."),
            Map.entry("VLLM_MOONCAKE_BOOTSTRAP_PORT", "`bootstrap_port` of `MooncakeConnector`, unless it is set."),
            Map.entry("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "`abort_request_timeout`, likewise."),
            Map.entry("VLLM_MOONCAKE_CONNECTOR_TIMEOUT", "`handshake_timeout`, likewise."),
            Map.entry("BATON_NIXL_LIBRARY", "NIXL's library, or a directory that holds it."),
            Map.entry("NIXL_PLUGIN_DIR", "NIXL's; set to the plugins beside its library unless it is set."),
            Map.entry("UCX_ERROR_SIGNALS", "UCX's; set to nothing unless it is set: the JVM needs these signals."),
            Map.entry("UCX_MEM_EVENTS", "UCX's; `n` unless it is set."),
            Map.entry("UCX_LOG_FILE", "UCX's; `stderr` unless it is set."),
            Map.entry("BATON_MOONCAKE_LIBRARY", "Mooncake's transfer engine, or a directory that holds it."),
            Map.entry("BATON_MOONCAKE_STORE_LIBRARY", "Mooncake's store, the library."),
            Map.entry("BATON_MOONCAKE_STORE_URL", "For `bench connectors`: the REST service of a Mooncake store."),
            Map.entry("MOONCAKE_CONFIG_PATH", "`mooncake_config_path` of `MooncakeStoreConnector`, unless it is set."),
            Map.entry("MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "This host's name for Mooncake's store; default: `kv_ip`."),
            Map.entry(
                    "MOONCAKE_PREFERRED_SEGMENT", "`preferred_segment` of `MooncakeStoreConnector`, unless it is set."),
            Map.entry("BATON_NCCL_LIBRARY", "NCCL's library, or a directory that holds it."),
            Map.entry(
                    "BATON_CUBLAS_LIBRARY",
                    "cuBLASLt's library for products of long prompts on a GPU, or a directory that holds it."),
            Map.entry("BATON_CUDA_DRIVER", "The library of NVIDIA's driver, or a directory that holds it."),
            Map.entry("BATON_ADMIN_KEY", "For `drain`: the router's admin key."),
            Map.entry("BATON_INSTANCE_URL", "For `drain`: the instance, as the router knows it."),
            Map.entry(
                    "BATON_CUDA_TESTS",
                    "Of the tests that `bench gpu` starts, which it sets: `device` or `simulated`."),
            Map.entry("BATON_CUDA_RUNTIME", "The CUDA runtime's library, or a directory that holds it."),
            Map.entry("LMCACHE_CONFIG_FILE", "YAML file with keys of `LMCacheConnectorV1`; `LMCACHE_<KEY>` sets one."),
            Map.entry("LMCACHE_FORCE_SKIP_SAVE", "Not empty: `LMCacheConnectorV1` stores nothing."),
            Map.entry("LMCACHE_LOG_LEVEL", "LMCache's; has no effect."),
            Map.entry("LMCACHE_TRACK_USAGE", "LMCache's; has no effect."),
            Map.entry("LMCACHE_USE_EXPERIMENTAL", "LMCache's; has no effect."),
            Map.entry("OPENAI_API_KEY", "Sent as a bearer token by `bench serve`."),
            Map.entry("OTEL_SERVICE_NAME", "`service.name` of spans, in place of `baton-serve` and `baton-router`.")));

    /** Properties of the JVM ({@code BATON_JAVA_OPTS="-DNAME=VALUE"}) that main code reads. */
    static final Map<String, String> PROPERTIES = new TreeMap<>(Map.of(
            "baton.home", "Where the launcher lies; it sets this.",
            "baton.kernels", "As `BATON_KERNELS`.",
            "baton.nixl.library", "As `BATON_NIXL_LIBRARY`.",
            "baton.mooncake.library", "As `BATON_MOONCAKE_LIBRARY`.",
            "baton.copy",
                    "`java`: memory is copied without machine code; `256`, `128`: with vectors of at most so many bits.",
            "baton.platform", "`macosx-arm64`: does without features that macOS lacks, for tests on Linux."));

    private static final String TRANSFER = """
            ## KVTransferConfig

            `./baton serve --kv-transfer-config JSON`, or field by field: `--kv-transfer-config.kv_role kv_producer`; see [connectors](connectors.md#--kv-transfer-config). An unknown field is an error.

            """;

    private static final String CONNECTORS = """
            ## Settings of connectors

            Keys of `kv_connector_extra_config`. A dot means an object in it, `[]` each object of a list; `[fs]` those of type `fs`. The log warns of keys that mean nothing to a connector.

            """;

    private static final String EVENTS = """
            ## KVEventsConfig

            `./baton serve --kv-events-config JSON`, or field by field; see [KV events](kv-events.md). An unknown field is an error.

            """;

    private final StringBuilder page = new StringBuilder();

    private ConfigurationPage() {}

    /** @param how the command that writes the page */
    static String text(String how) {
        ConfigurationPage it = new ConfigurationPage();
        it.page.append("""
                # Configuration

                Every option, setting and variable, as the code has them. Written by `%s`.

                Numbers may be written `2k` (2,000) or `2K` (2,048) where an option counts tokens or bytes, and underscores for hyphens.

                """.formatted(how));
        it.page.append("## Commands\n\n");
        it.commands(Baton.commandLine(new ServeCommand()));
        it.page.append(TRANSFER);
        it.settings(KvTransferConfig.FIELDS);
        it.page.append(CONNECTORS);
        ServiceLoader.load(KvConnector.class).stream()
                .map(ServiceLoader.Provider::get)
                .sorted(Comparator.comparing(ConfigurationPage::names))
                .forEach(connector -> {
                    it.page.append("### ").append(names(connector)).append("\n\n");
                    it.settings(connector.settings());
                });
        it.page.append(EVENTS);
        it.settings(KvEventsConfig.FIELDS);
        it.page.append("## Environment variables\n\n");
        it.table("variable", VARIABLES);
        it.page.append("## System properties\n\n");
        it.table("property", PROPERTIES);
        return it.page.toString().stripTrailing() + "\n";
    }

    private static String names(KvConnector connector) {
        return connector.names().stream().sorted().collect(Collectors.joining(", "));
    }

    private void commands(CommandLine command) {
        CommandSpec spec = command.getCommandSpec();
        List<ArgSpec> arguments = spec.args().stream()
                .filter(each -> !each.hidden())
                .filter(each -> !(each instanceof OptionSpec option) || !(option.usageHelp() || option.versionHelp()))
                .toList();
        if (!arguments.isEmpty()) {
            page.append("### ").append(spec.qualifiedName()).append("\n\n");
            page.append(String.join(" ", spec.usageMessage().description())).append("\n\n");
            page.append("| option | |\n|---|---|\n");
            arguments.forEach(this::argument);
            page.append('\n');
        }
        command.getSubcommands().values().stream()
                .filter(each -> !each.getCommandSpec().usageMessage().hidden())
                .sorted(Comparator.comparing(CommandLine::getCommandName))
                .forEach(this::commands);
    }

    private void argument(ArgSpec argument) {
        String label = argument.arity().max() > 0 ? " " + argument.paramLabel() : "";
        String name = argument instanceof OptionSpec option
                ? option.names().length == 1 ? option.longestName() : String.join(", ", option.names())
                : "";
        String negated = argument instanceof OptionSpec option && option.negatable()
                ? ", `--no-" + option.longestName().substring(2) + "`"
                : "";
        row("`" + (name + label).strip() + "`" + negated, String.join(" ", argument.description()));
    }

    private void settings(List<Setting> settings) {
        page.append("| key | default | |\n|---|---|---|\n");
        settings.forEach(each -> row("`" + each.name() + "`", each.byDefault(), each.meaning()));
        page.append('\n');
    }

    private void table(String what, Map<String, String> meanings) {
        page.append("| ").append(what).append(" | |\n|---|---|\n");
        meanings.forEach((name, meaning) -> row("`" + name + "`", meaning));
        page.append('\n');
    }

    private void row(String... cells) {
        for (String cell : cells) {
            page.append("| ")
                    .append(cell.replace("|", "\\|").replaceAll("\\s+", " "))
                    .append(' ');
        }
        page.append("|\n");
    }
}
