package baton.store.mooncake;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import java.time.Duration;

/** Over a stand-in for the REST service, each value in two objects. */
class RestContractTest extends BlockStoreContract {
    static MooncakeBlockStore open(StoreFormat format, RestStandIn service, int tensorShares, int pipelineShares) {
        return MooncakeBlockStore.open(
                format,
                new MooncakeNames("a prefix/with a slash", format.model().name(), tensorShares, pipelineShares),
                new MooncakeRest(service.url(), 4, Duration.ofSeconds(1)),
                Ticker.system());
    }

    @Override
    protected Medium medium() throws Exception {
        RestStandIn service = new RestStandIn();
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return RestContractTest.open(format, service, 2, 1);
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
