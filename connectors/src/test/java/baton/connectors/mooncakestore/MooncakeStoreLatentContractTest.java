package baton.connectors.mooncakestore;

import baton.kv.KvLayout;

/** With pools of latents. */
class MooncakeStoreLatentContractTest extends MooncakeStoreContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
