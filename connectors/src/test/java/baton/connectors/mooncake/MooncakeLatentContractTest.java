package baton.connectors.mooncake;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class MooncakeLatentContractTest extends MooncakeContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
