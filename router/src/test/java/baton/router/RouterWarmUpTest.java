package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.router.flow.HandoffFlow;
import io.vertx.core.Vertx;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.FieldSource;

class RouterWarmUpTest {
    @ParameterizedTest
    @FieldSource("baton.router.flow.HandoffFlow#NAMES")
    void warmUpSendsRequestsThroughEveryFlow(String flow) throws Exception {
        Vertx vertx = Vertx.vertx();
        try {
            assertThat(new RouterWarmUp(vertx, HandoffFlow.named(flow), Ticker.system())
                            .run(50, 3, Duration.ofSeconds(20)))
                    .isEqualTo(50);
        } finally {
            Router.await(vertx.close(), Duration.ofSeconds(10));
        }
    }

    @Test
    void warmUpOfAnUnknownFlowIsRefusedByName() {
        assertThatThrownBy(() -> Router.warmUp("carrier-pigeon", Duration.ofSeconds(1)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("carrier-pigeon");
    }
}
