package baton.connectors.nixl;

class NixlPushEmbeddedContractTest extends NixlEmbeddedContract {
    NixlPushEmbeddedContractTest() {
        super("NixlPushConnector", NixlPushConnector::new);
    }
}
