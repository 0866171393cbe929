package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.messages.PeerAccess;
import java.util.Optional;

/**
 * How a {@link MooncakeEngineAgent} is opened.
 *
 * @param host under which peers find it
 * @param metadata where descriptors of segments are
 * @param protocol {@code tcp} or {@code rdma}
 * @param device RDMA's; empty for all that there are
 * @param access hosts of the peers that it connects to; empty: all. The library serves every host that reaches its ports
 */
@GeneratedBuilder
public record EngineSettings(
        String host, MetadataSource metadata, String protocol, Optional<String> device, Optional<PeerAccess> access)
        implements EngineSettingsBuilder.With {
    /** @throws ConfigException if a value cannot be used */
    public EngineSettings {
        if (!protocol.equals("tcp") && !protocol.equals("rdma")) {
            throw ConfigException.unsupported("protocol", protocol, "tcp, rdma");
        }
        device.ifPresent(name -> {
            if (!name.matches("[A-Za-z0-9_.:-]{1,64}")) {
                throw new ConfigException("device_name", "is '" + name + "', must be the name of an RDMA device");
            }
        });
    }

    /** TCP, and descriptors asked for at the peers themselves. */
    public static EngineSettings at(String host) {
        return new EngineSettings(host, new MetadataSource.Handshake(), "tcp", Optional.empty(), Optional.empty());
    }
}
