package baton.connectors.nixl;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnector;
import baton.testkit.ConnectorContract;
import java.util.function.Supplier;

/** The contract for NIXL's connectors over embedded agents, which copy between the pools of a device within it. */
abstract class NixlEmbeddedContract extends ConnectorContract {
    private final String name;
    private final Supplier<KvConnector> connector;

    NixlEmbeddedContract(String name, Supplier<KvConnector> connector) {
        this.name = name;
        this.connector = connector;
    }

    @Override
    protected Instances instances() {
        return new Pair(
                new KvLayout(3, 2, 4, 4, DType.F32),
                connector,
                role -> KvTransferConfig.builder(name, KvRole.BOTH)
                        .engineId(role.toString())
                        .bufferDevice("cuda")
                        .extra("transfer_agent", "embedded")
                        .extra("side_channel_host", "127.0.0.1")
                        .extra("side_channel_port", 0)
                        .extra("handshake_timeout", 2)
                        .extra("kv_lease_duration", 2)
                        .extra("decoder_kv_blocks_ttl", 2)
                        .build()) {
            @Override
            public int roundsWithoutReader() {
                return 100;
            }
        };
    }
}
