package baton.transfer.select;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.messages.PeerAccess;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.nixl.NixlAgent;
import baton.transfer.nixl.NixlLibrary;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.JsonNode;

/**
 * Chooses the transfer agent that a configuration asks for, from a connector's {@code kv_connector_extra_config}:
 *
 * <ul>
 *   <li>{@code transfer_agent}: {@code auto} (default), {@code embedded}, {@code nixl} or {@code mooncake}
 *   <li>{@code backends}: names of NIXL's backends, as in vLLM; asks for {@code nixl}. Default {@code ["UCX"]}
 *   <li>{@code backend_params}: an object for each backend, its parameters
 *   <li>{@code num_threads}: parameter {@code num_threads} of the backend UCX, as in vLLM
 *   <li>{@code nixl_library}: NIXL's library, see {@link NixlLibrary}
 *   <li>{@code transport}: {@code tcp} lets the embedded agent use TCP within a host as well, {@code auto} (default) only between
 *       hosts; asks for {@code embedded}
 *   <li>{@code metadata_server}, {@code protocol}, {@code device_name}, {@code mooncake_library}: Mooncake's, see
 *       {@link MooncakeSelection}; only with {@code mooncake}
 * </ul>
 *
 * <p>{@code auto} takes NIXL where there is an RDMA device and the library loads, and the embedded agent otherwise, which within a
 * host and over TCP is at least as fast and survives every death of a peer (see {@link NixlAgent}). It logs each agent that it does not
 * take, with the reason and the setting that would change it.
 */
public final class TransferAgents {
    public static final String TRANSFER_AGENT = "transfer_agent";
    public static final String BACKENDS = "backends";
    public static final String BACKEND_PARAMS = "backend_params";
    public static final String NUM_THREADS = "num_threads";
    public static final String NIXL_LIBRARY = "nixl_library";
    public static final String TRANSPORT = "transport";

    /** The settings of the embedded agent, of NIXL, and of the choice between them. */
    public static final List<Setting> WITHOUT_MOONCAKE = List.of(
            Setting.absent(
                    TRANSFER_AGENT,
                    "`\"auto\"`",
                    "`embedded`, `nixl`, `mooncake`, or `auto`: NIXL where there is an RDMA device and its library loads, else"
                            + " embedded."),
            Setting.absent(
                    TRANSPORT,
                    "`\"auto\"`",
                    "The embedded agent's within one host: `auto` is shared memory, `tcp` is TCP as between hosts."),
            Setting.absent(BACKENDS, "`[\"UCX\"]`", "NIXL's backends; asks for `nixl`."),
            Setting.absent(
                    BACKEND_PARAMS, "`{}`", "Their parameters: `{\"UCX\": {\"engine_config\": \"TLS=rc,cma\"}}`."),
            Setting.absent(NUM_THREADS, "none", "UCX's parameter of that name."),
            Setting.absent(
                    NIXL_LIBRARY,
                    "found as [here](connectors/transfer-agents.md#nixl)",
                    "`libnixl_capi.so`, or a directory that holds it or an unpacked wheel."));

    /** All of them. */
    public static final List<Setting> SETTINGS = Setting.join(WITHOUT_MOONCAKE, MooncakeSelection.SETTINGS);

    private static final Logger LOG = LoggerFactory.getLogger(TransferAgents.class);
    private static final Path RDMA_DEVICES = Path.of("/sys/class/infiniband");
    private static final String UCX = "UCX";

    private enum Kind {
        AUTO,
        EMBEDDED,
        NIXL,
        MOONCAKE
    }

    private TransferAgents() {}

    /**
     * Opens the agent that is asked for.
     *
     * @param prefix with which its name begins
     * @param extra the connector's settings; keys that are not of transfer agents are ignored
     * @param embedded settings of the embedded agent, should it be taken
     * @throws ConfigException if a setting is wrong, or NIXL is asked for and not there
     * @throws TransferException if the agent cannot be opened
     */
    public static TransferAgent open(String prefix, JsonFields extra, EmbeddedAgent.Settings embedded)
            throws TransferException {
        return open(prefix, extra, embedded, NixlLibrary::find, hasRdmaDevice(RDMA_DEVICES));
    }

    static TransferAgent open(
            String prefix,
            JsonFields extra,
            EmbeddedAgent.Settings embedded,
            Function<Optional<Path>, NixlLibrary> find,
            boolean rdma)
            throws TransferException {
        EmbeddedAgent.Settings own =
                transport(extra).map(embedded::withTransport).orElse(embedded);
        Optional<Path> library = extra.path(NIXL_LIBRARY);
        NixlAgent.Settings nixl = nixl(extra);
        return switch (kind(extra)) {
            case EMBEDDED -> EmbeddedAgent.open(prefix, own);
            case NIXL -> {
                embedded.access().ifPresent(access -> access.requireUnencrypted(asking(extra), "nixl"));
                yield switch (find.apply(library)) {
                    case NixlLibrary.Found found -> explicit(found, prefix, nixl, extra, rdma);
                    case NixlLibrary.Absent absent -> throw new ConfigException(asking(extra), absent.reason());
                };
            }
            case MOONCAKE -> {
                embedded.access()
                        .ifPresent(access -> access.requireUnencrypted(extra.field(TRANSFER_AGENT), "mooncake"));
                yield MooncakeSelection.open(extra, embedded.host(), embedded.access());
            }
            case AUTO -> {
                boolean sealed = embedded.access().flatMap(PeerAccess::sealing).isPresent();
                Optional<TransferAgent> best =
                        rdma && !sealed ? automatic(find.apply(library), prefix, nixl) : Optional.empty();
                if (sealed) {
                    LOG.info("transfer agent: embedded, because {} is required", PeerAccess.ENCRYPTION);
                } else if (!rdma) {
                    LOG.info("{}", withoutRdma());
                }
                yield best.isPresent() ? best.get() : EmbeddedAgent.open(prefix, own);
            }
        };
    }

    /** The agent that {@code auto} takes on this machine, as it would log it; no agent is opened. */
    public static String automaticChoice() {
        return automaticChoice(NixlLibrary::find, hasRdmaDevice(RDMA_DEVICES));
    }

    static String automaticChoice(Function<Optional<Path>, NixlLibrary> find, boolean rdma) {
        if (!rdma) {
            return withoutRdma();
        }
        return switch (find.apply(Optional.empty())) {
            case NixlLibrary.Found found -> withNixl(List.of(UCX), found);
            case NixlLibrary.Absent absent -> withoutNixl(absent.reason());
        };
    }

    private static String withoutRdma() {
        return "transfer agent: embedded; not NIXL, because there is no RDMA device in %s (%s=nixl takes it all the same)"
                .formatted(RDMA_DEVICES, TRANSFER_AGENT);
    }

    private static String withNixl(List<String> backends, NixlLibrary.Found library) {
        return "transfer agent: NIXL with %s from %s".formatted(backends, library.file());
    }

    private static String withoutNixl(String reason) {
        return "transfer agent: embedded; not NIXL: " + reason;
    }

    private static TransferAgent explicit(
            NixlLibrary.Found library, String prefix, NixlAgent.Settings settings, JsonFields extra, boolean rdma) {
        try {
            TransferAgent agent = NixlAgent.open(library, prefix, settings);
            LOG.info("{}", withNixl(settings.backends(), library));
            if (!rdma) {
                LOG.warn(
                        "no RDMA device in {}: between hosts UCX reads over TCP, where a reader's death can end the process it reads"
                                + " from; {}=embedded has no such danger",
                        RDMA_DEVICES,
                        TRANSFER_AGENT);
            }
            return agent;
        } catch (TransferException e) {
            throw new ConfigException(asking(extra), String.valueOf(e.getMessage()), e);
        }
    }

    private static Optional<TransferAgent> automatic(NixlLibrary library, String prefix, NixlAgent.Settings settings) {
        String reason;
        switch (library) {
            case NixlLibrary.Absent absent -> reason = absent.reason();
            case NixlLibrary.Found found -> {
                try {
                    TransferAgent agent = NixlAgent.open(found, prefix, settings);
                    LOG.info("{}", withNixl(settings.backends(), found));
                    return Optional.of(agent);
                } catch (TransferException e) {
                    reason = String.valueOf(e.getMessage());
                }
            }
        }
        LOG.info("{}", withoutNixl(reason));
        return Optional.empty();
    }

    /** The setting that asks for NIXL. */
    private static String asking(JsonFields extra) {
        return extra.field(extra.value(BACKENDS).isPresent() ? BACKENDS : TRANSFER_AGENT);
    }

    private static Kind kind(JsonFields extra) {
        String value = extra.string(TRANSFER_AGENT).orElse("auto");
        boolean backends = extra.value(BACKENDS).isPresent();
        boolean transport = extra.value(TRANSPORT).isPresent();
        if (value.equals("mooncake")) {
            refuse(extra, "mooncake", BACKENDS, TRANSPORT);
            return Kind.MOONCAKE;
        }
        refuse(extra, value, Setting.names(MooncakeSelection.SETTINGS).toArray(String[]::new));
        if (transport && (backends || value.equals("nixl"))) {
            throw new ConfigException(
                    extra.field(TRANSPORT),
                    "is of the embedded agent, but " + (backends ? BACKENDS : TRANSFER_AGENT)
                            + " asks for nixl: leave one out");
        }
        return switch (value) {
            case "auto" -> backends ? Kind.NIXL : transport ? Kind.EMBEDDED : Kind.AUTO;
            case "nixl" -> Kind.NIXL;
            case "embedded" -> {
                if (backends) {
                    throw new ConfigException(
                            extra.field(TRANSFER_AGENT),
                            "is embedded, but " + BACKENDS + " asks for nixl: leave one out");
                }
                yield Kind.EMBEDDED;
            }
            default ->
                throw ConfigException.unsupported(extra.field(TRANSFER_AGENT), value, "auto, embedded, nixl, mooncake");
        };
    }

    private static void refuse(JsonFields extra, String agent, String... keys) {
        for (String key : keys) {
            if (extra.value(key).isPresent()) {
                throw new ConfigException(
                        extra.field(key),
                        "is of another agent than " + agent + ": leave it or " + TRANSFER_AGENT + " out");
            }
        }
    }

    private static Optional<EmbeddedAgent.Transport> transport(JsonFields extra) {
        return extra.choice(TRANSPORT, "auto", "tcp")
                .map(value -> value.equals("tcp") ? EmbeddedAgent.Transport.TCP : EmbeddedAgent.Transport.AUTO);
    }

    private static NixlAgent.Settings nixl(JsonFields extra) {
        List<String> backends = extra.value(BACKENDS)
                .map(value -> names(extra.field(BACKENDS), value))
                .orElse(List.of(UCX));
        Map<String, Map<String, String>> parameters = new HashMap<>();
        extra.integerAtLeast(NUM_THREADS, 0)
                .ifPresent(threads -> parameters
                        .computeIfAbsent(UCX, _ -> new HashMap<>())
                        .put(NUM_THREADS, Integer.toString(threads)));
        extra.object(BACKEND_PARAMS).ifPresent(all -> {
            for (String backend : all.names()) {
                if (!backends.contains(backend)) {
                    throw new ConfigException(
                            all.field(backend), "is no backend in use; these are: " + String.join(", ", backends));
                }
                JsonFields one = all.object(backend).orElseGet(() -> JsonFields.empty(all.field(backend)));
                for (String key : one.names()) {
                    one.value(key)
                            .ifPresent(value -> parameters
                                    .computeIfAbsent(backend, _ -> new HashMap<>())
                                    .put(key, value.isValueNode() ? value.asString() : value.toString()));
                }
            }
        });
        return new NixlAgent.Settings(backends, parameters);
    }

    private static List<String> names(String field, JsonNode value) {
        List<String> names = new ArrayList<>();
        if (value.isArray()) {
            for (JsonNode name : value) {
                if (name.isString() && !name.asString().isBlank()) {
                    names.add(name.asString());
                }
            }
        }
        if (names.isEmpty() || names.size() != value.size()) {
            throw new ConfigException(field, "must be an array of NIXL backends such as [\"UCX\"], is " + value);
        }
        return names;
    }

    static boolean hasRdmaDevice(Path devices) {
        if (!Files.isDirectory(devices)) {
            return false;
        }
        try (Stream<Path> found = Files.list(devices)) {
            return found.findAny().isPresent();
        } catch (IOException e) {
            return false;
        }
    }
}
