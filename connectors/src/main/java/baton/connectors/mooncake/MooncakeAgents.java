package baton.connectors.mooncake;

import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.MooncakeAgent;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Mooncake's transfer engine, as the settings ask for it. */
final class MooncakeAgents {
    private static final Logger log = LoggerFactory.getLogger(MooncakeAgents.class);

    private MooncakeAgents() {}

    static TransferAgent open(KvTransferConfig config, MooncakeSettings settings) {
        String protocol = config.extra()
                .withDefaults(MooncakeSettings.SETTINGS)
                .string(MooncakeSettings.PROTOCOL)
                .orElseThrow();
        if (!protocol.equals("tcp")) {
            log.info(
                    "The Mooncake Transfer Engine is using tcp as its protocol, not {}: transfers over RDMA need Mooncake's library, which is not in use ({}=tcp says the same)",
                    protocol,
                    MooncakeSettings.PROTOCOL);
        }
        try {
            return MooncakeAgent.open(baton.transfer.mooncake.MooncakeAgentSettings.at(settings.host())
                    .withAccess(Optional.of(settings.access())));
        } catch (TransferException e) {
            throw new ConfigException("kv_ip", "no transfer agent: " + e.getMessage(), e);
        }
    }
}
