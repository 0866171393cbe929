package baton.pipe.select;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.pipe.WireTransport;
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
    void aTransportThatCannotBeLoadedIsRefusedWithTheReason() {
        assertThatThrownBy(() -> WireTransports.named("x.transport", "carrier pigeon"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("allowed: auto, tcp, gloo, nccl");
    }
}
