package baton.store.mooncake;

import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.sealed.SealedStore;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;

/** Sealed values, each in one object, over a stand-in for the REST service. */
@Tag("thorough")
class SealedRestContractTest extends BlockStoreContract {
    @TempDir
    Path directory;

    @Override
    protected Medium medium() throws Exception {
        RestStandIn service = new RestStandIn();
        PeerSecret secret = PeerSecret.read(
                "kv_store_key_file", Files.writeString(directory.resolve("secret"), "a secret of the instances"));
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return SealedStore.over(
                        each -> RestContractTest.open(each, service, 1, 1), format, secret, Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return true;
            }

            @Override
            public void close() {
                service.close();
            }
        };
    }
}
