package baton.connectors.nixl;

import java.util.function.UnaryOperator;

/** Only the prefill instance reaches its device's pool directly, and its checksums are those of a host. */
class NixlPushDirectPrefillContractTest extends NixlContract {
    NixlPushDirectPrefillContractTest() {
        super(
                "NixlPushConnector",
                NixlPushConnector::new,
                config -> config.bufferDevice("cuda").extra("kv_digest", "crc32c"),
                UnaryOperator.identity());
    }
}
