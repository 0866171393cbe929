package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Only the decode instance reaches its device's pool directly. */
class NixlPushDirectDecodeContractTest extends NixlContract {
    NixlPushDirectDecodeContractTest() {
        super(
                "NixlPushConnector",
                NixlPushConnector::new,
                UnaryOperator.identity(),
                config -> config.bufferDevice("cuda"));
    }
}
