package baton.connectors.offloading;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class OffloadingLatentContractTest extends OffloadingContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
