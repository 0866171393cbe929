package baton.connectors.nixl;

import java.util.Map;

/** Of a prefill instance whose checksums are of another kind than the decode instance's. */
class NixlPushDigestContractTest extends NixlContract {
    NixlPushDigestContractTest() {
        super("NixlPushConnector", NixlPushConnector::new, Map.of("kv_digest", "sum61"));
    }
}
