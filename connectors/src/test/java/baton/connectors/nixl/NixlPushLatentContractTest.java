package baton.connectors.nixl;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class NixlPushLatentContractTest extends NixlPushContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
