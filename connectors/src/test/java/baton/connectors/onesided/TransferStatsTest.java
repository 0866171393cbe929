package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import org.junit.jupiter.api.Test;

/** The line in the log that sums transfers up, as vLLM's. */
class TransferStatsTest {
    private final TransferStats stats = new TransferStats("vllm:nixl_", "NIXL", true, 0);

    private void transferred(int millis, int postMillis) {
        stats.transferred(Duration.ofMillis(millis), Duration.ofMillis(postMillis), 1 << 20, 3);
    }

    @Test
    void theNinetiethPercentileOfTwoTransfersIsNearTheSlowerOne() {
        transferred(30, 1);
        transferred(10, 2);
        assertThat(stats.line(10))
                .isEqualTo("KV Transfer metrics: Num successful transfers=2, Avg xfer time (ms)=20.000, "
                        + "P90 xfer time (ms)=28.000, Avg post time (ms)=1.500, P90 post time (ms)=1.900, "
                        + "Avg MB per transfer=1.000, Throughput (MB/s)=0.200, Avg number of descriptors=3.0");
    }

    @Test
    void theNinetiethPercentileOfOneTransferIsItsTime() {
        transferred(30, 1);
        assertThat(stats.line(10)).contains("P90 xfer time (ms)=30.000", "P90 post time (ms)=1.000");
    }
}
