package baton.connectors.offloading;

import baton.kv.KvLayout;

/** With pools of latents. */
class OffloadingLatentContractTest extends OffloadingContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
