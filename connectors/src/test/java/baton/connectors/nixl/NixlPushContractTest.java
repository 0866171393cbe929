package baton.connectors.nixl;

/** Transfers and side channels in memory, under a clock of the test's own. */
class NixlPushContractTest extends NixlContract {
    NixlPushContractTest() {
        super("NixlPushConnector", NixlPushConnector::new);
    }
}
