package baton.connectors.mooncakestore;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class MooncakeStoreLatentContractTest extends MooncakeStoreContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
