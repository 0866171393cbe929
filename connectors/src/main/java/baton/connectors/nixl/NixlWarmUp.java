package baton.connectors.nixl;

import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnector;
import baton.kv.connector.WarmUpPair;
import baton.transfer.select.TransferAgents;
import java.util.Optional;

/** Hand-overs over the loopback interface, by the embedded agent: NIXL's start takes longer than all of them. */
final class NixlWarmUp {
    private static final String LOOPBACK = "127.0.0.1";

    private NixlWarmUp() {}

    static Optional<WarmUpPair> of(KvConnector connector, String name, KvTransferConfig config) {
        return Optional.of(new WarmUpPair(
                connector,
                side(name, KvRole.PRODUCER, config),
                side(name, KvRole.CONSUMER, config),
                "warm-up-%d"::formatted,
                () -> {}));
    }

    private static KvTransferConfig side(String name, KvRole role, KvTransferConfig config) {
        KvTransferConfig.Builder side = KvTransferConfig.builder(name, role)
                .extra(NixlSettings.HOST, LOOPBACK)
                .extra(NixlSettings.PORT, 0)
                .extra(TransferAgents.TRANSFER_AGENT, "embedded");
        config.extra()
                .string(TransferAgents.TRANSPORT)
                .ifPresent(transport -> side.extra(TransferAgents.TRANSPORT, transport));
        return side.build();
    }
}
