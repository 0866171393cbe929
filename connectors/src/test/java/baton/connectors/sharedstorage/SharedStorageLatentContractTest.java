package baton.connectors.sharedstorage;

import baton.kv.KvLayout;

/** With pools of latents. */
class SharedStorageLatentContractTest extends SharedStorageContractTest {
    @Override
    KvLayout layout() {
        return latents(16);
    }
}
