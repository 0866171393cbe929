package baton.connectors.nixl;

/** The contract with an agent that reaches the pools' memory, so that a device's pools have no staging pools. */
class NixlPullDirectContractTest extends NixlContract {
    NixlPullDirectContractTest() {
        super(
                "NixlConnector",
                NixlConnector::new,
                config -> config.bufferDevice("cuda"),
                config -> config.bufferDevice("cuda"));
    }
}
