package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * A server that has loaded NIXL exits with status 0 after SIGTERM. The crash that it is protected from needs the system's libnl-route
 * beside that of NIXL's wheel: {@code LD_PRELOAD=libnl-route-3.so.200} in the test's environment, where that is not loaded anyway.
 */
class NixlExitTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @Test
    void aServerWithNixlExitsWithItsOwnStatus() throws Exception {
        Nixl.assumeInstalled();
        Instance server = INSTANCES.serveBlocks(
                "nixl",
                "NixlConnector",
                "kv_producer",
                "--kv-transfer-config.kv_connector_extra_config.transfer_agent",
                "nixl");
        var _ = server.url();
        assertThat(server.log()).contains("transfer agent: NIXL");

        server.terminate();

        int status = server.awaitExit();
        assertThat(status).as(server.log()).isZero();
    }
}
