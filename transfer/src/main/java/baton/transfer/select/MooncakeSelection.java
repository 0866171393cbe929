package baton.transfer.select;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.messages.PeerAccess;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.EngineSettings;
import baton.transfer.mooncake.MetadataSource;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeAgentSettings;
import baton.transfer.mooncake.MooncakeEngineAgent;
import baton.transfer.mooncake.MooncakeLibrary;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Opens a Mooncake agent as a configuration asks for:
 *
 * <ul>
 *   <li>{@code metadata_server}: {@code P2PHANDSHAKE} (default) or {@code http://host:port/metadata}
 *   <li>{@code protocol}: {@code tcp} (default) or {@code rdma}, which needs the library
 *   <li>{@code device_name}: RDMA's device; default all
 *   <li>{@code mooncake_library}: Mooncake's library, see {@link MooncakeLibrary}; with {@code tcp} it is used only if this names it
 * </ul>
 */
public final class MooncakeSelection {
    public static final String METADATA_SERVER = "metadata_server";
    public static final String PROTOCOL = "protocol";
    public static final String DEVICE_NAME = "device_name";
    public static final String LIBRARY = "mooncake_library";

    /** All of them. */
    public static final List<Setting> SETTINGS = List.of(
            Setting.of(
                    METADATA_SERVER,
                    MetadataSource.P2P,
                    "With `mooncake`: where engines find each other, that or `http://host:8080/metadata`."),
            Setting.of(PROTOCOL, "tcp", "With `mooncake`: `tcp`, or `rdma`, which needs Mooncake's library."),
            Setting.absent(DEVICE_NAME, "all", "With `mooncake` and `rdma`: the RDMA device."),
            Setting.absent(
                    LIBRARY,
                    "none",
                    "`libtransfer_engine.so`, or a directory that holds it; with `tcp` it is used only if this names it."));

    private static final Logger LOG = LoggerFactory.getLogger(MooncakeSelection.class);

    private MooncakeSelection() {}

    /**
     * Opens the agent that is asked for.
     *
     * @param extra the connector's settings; other keys are ignored
     * @param host to listen at, and under which peers find it
     * @param access peers that it connects to and serves
     * @throws ConfigException if a setting is wrong, or the library is needed and not there
     * @throws TransferException if the agent cannot be opened
     */
    public static TransferAgent open(JsonFields extra, String host, Optional<PeerAccess> access)
            throws TransferException {
        return open(extra, host, access, MooncakeLibrary::find);
    }

    static TransferAgent open(
            JsonFields given, String host, Optional<PeerAccess> access, Function<Optional<Path>, MooncakeLibrary> find)
            throws TransferException {
        JsonFields extra = given.withDefaults(SETTINGS);
        MetadataSource metadata = MetadataSource.parse(
                extra.field(METADATA_SERVER), extra.string(METADATA_SERVER).orElseThrow());
        String protocol = extra.choice(PROTOCOL, "tcp", "rdma").orElseThrow();
        Optional<String> device = extra.string(DEVICE_NAME).filter(name -> !name.isEmpty());
        Optional<Path> library = extra.path(LIBRARY);
        boolean rdma = protocol.equals("rdma");
        if (!rdma && device.isPresent()) {
            throw new ConfigException(extra.field(DEVICE_NAME), "is of protocol rdma, but the protocol is tcp");
        }
        if (!rdma && library.isEmpty()) {
            MooncakeAgent agent = MooncakeAgent.open(
                    MooncakeAgentSettings.at(host).withMetadata(metadata).withAccess(access));
            LOG.info("transfer agent: Mooncake's TCP transport, at {}", agent.rpc());
            return agent;
        }
        return switch (find.apply(library)) {
            case MooncakeLibrary.Found found -> {
                MooncakeEngineAgent agent = MooncakeEngineAgent.open(
                        found,
                        EngineSettings.at(host)
                                .withMetadata(metadata)
                                .withProtocol(protocol)
                                .withDevice(device)
                                .withAccess(access));
                LOG.info(
                        "transfer agent: Mooncake's engine with {} from {}, at {}",
                        protocol,
                        found.file(),
                        agent.rpc());
                yield agent;
            }
            case MooncakeLibrary.Absent absent ->
                throw new ConfigException(extra.field(library.isPresent() ? LIBRARY : PROTOCOL), absent.reason());
        };
    }
}
