package baton.connectors.nixl;

/** Transfers and side channels in memory, under a clock of the test's own. */
class NixlContractTest extends NixlContract {
    NixlContractTest() {
        super("NixlConnector", NixlConnector::new);
    }
}
