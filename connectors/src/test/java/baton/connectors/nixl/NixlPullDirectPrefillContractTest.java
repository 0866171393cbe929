package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Only the prefill instance reaches its device's pool directly, and its checksums are those of a host. */
class NixlPullDirectPrefillContractTest extends NixlContract {
    NixlPullDirectPrefillContractTest() {
        super(
                "NixlConnector",
                NixlConnector::new,
                config -> config.bufferDevice("cuda").extra("kv_digest", "crc32c"),
                UnaryOperator.identity());
    }
}
