package baton.connectors.nixl;

import baton.kv.KvLayout;

/** With pools of latents. */
class NixlPushLatentContractTest extends NixlPushContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
