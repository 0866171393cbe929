package baton.connectors.nixl;

import java.util.Map;

/** Of a prefill instance whose checksums are of another kind than the decode instance's. */
class NixlPullDigestContractTest extends NixlContract {
    NixlPullDigestContractTest() {
        super("NixlConnector", NixlConnector::new, Map.of("kv_digest", "sum61"));
    }
}
