package baton.connectors.nixl;

import baton.kv.KvLayout;

/** With pools of latents. */
class NixlPullLatentContractTest extends NixlContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
