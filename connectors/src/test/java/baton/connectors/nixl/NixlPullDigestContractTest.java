package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Of a prefill instance whose checksums are of another kind than the decode instance's. */
class NixlPullDigestContractTest extends NixlContract {
    NixlPullDigestContractTest() {
        super(
                "NixlConnector",
                NixlConnector::new,
                config -> config.extra("kv_digest", "sum61"),
                UnaryOperator.identity());
    }
}
