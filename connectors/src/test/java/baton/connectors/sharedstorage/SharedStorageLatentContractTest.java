package baton.connectors.sharedstorage;

import baton.kv.KvLayout;

/** The contract with pools of latents. */
class SharedStorageLatentContractTest extends SharedStorageContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
