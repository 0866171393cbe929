package baton.connectors.mooncake;

import baton.kv.KvLayout;

/** With pools of latents. */
class MooncakeLatentContractTest extends MooncakeContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
