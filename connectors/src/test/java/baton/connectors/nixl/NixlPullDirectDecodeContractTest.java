package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Only the decode instance reaches its device's pool directly. */
class NixlPullDirectDecodeContractTest extends NixlContract {
    NixlPullDirectDecodeContractTest() {
        super("NixlConnector", NixlConnector::new, UnaryOperator.identity(), config -> config.bufferDevice("cuda"));
    }
}
