package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** A prefill instance that makes checksums of another kind than the decode instance. */
class NixlPullDigestContractTest extends NixlContract {
    NixlPullDigestContractTest() {
        super(
                "NixlConnector",
                NixlConnector::new,
                config -> config.extra("kv_digest", "sum61"),
                UnaryOperator.identity());
    }
}
