package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import org.junit.jupiter.api.Test;

/** Transports by name. */
class WireTransportsTest {
    @Test
    void autoIsTcp() {
        for (String name : new String[] {"auto", "tcp"}) {
            try (WireTransport transport = WireTransports.named("transport", name)) {
                assertThat(transport.name()).isEqualTo("tcp");
            }
        }
        try (WireTransport transport = WireTransports.named("transport", "gloo")) {
            assertThat(transport.name()).isEqualTo("gloo");
        }
    }

    @Test
    void whatCannotBeHadIsRefusedWithTheReason() {
        assertThatThrownBy(() -> WireTransports.named("x.transport", "nccl"))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "x.transport: is nccl, but NCCL moves memory of GPUs, and KV caches are in host memory here;"
                                + " tcp and gloo move that");
        assertThatThrownBy(() -> WireTransports.named("x.transport", "carrier pigeon"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("allowed: auto, tcp, gloo");
    }
}
