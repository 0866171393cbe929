package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Of a prefill instance whose checksums are of another kind than the decode instance's. */
class NixlPushDigestContractTest extends NixlContract {
    NixlPushDigestContractTest() {
        super(
                "NixlPushConnector",
                NixlPushConnector::new,
                config -> config.extra("kv_digest", "sum61"),
                UnaryOperator.identity());
    }
}
