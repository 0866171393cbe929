package baton.connectors.nixl;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class NixlPullLatentContractTest extends NixlContractTest {
    @Override
    KvLayout layout() {
        return latents(4);
    }
}
