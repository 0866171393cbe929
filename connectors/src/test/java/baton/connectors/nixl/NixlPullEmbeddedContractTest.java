package baton.connectors.nixl;

class NixlPullEmbeddedContractTest extends NixlEmbeddedContract {
    NixlPullEmbeddedContractTest() {
        super("NixlConnector", NixlConnector::new);
    }
}
