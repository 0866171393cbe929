package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.transfer.nixl.NixlExit;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class TransferBenchTest {
    @BeforeAll
    static void loadsNixlWhereItIsInstalled() {
        NixlExit.atShutdown();
    }

    @Test
    void measuresEveryAgentAndTheLimitsInOneRun() throws IOException {
        List<String> progress = new ArrayList<>();
        TransferReport report = new TransferBench(1, List.of(16, 128), Duration.ofMillis(5), progress::add).run();

        assertThat(progress).containsExactly("two processes with pools of 4 MiB", "16 tokens", "128 tokens");
        assertThat(report.implementations())
                .containsSubsequence("shared memory", "TCP", "Mooncake's TCP", "wire: Gloo", "wire: TCP");
        // NIXL and UCX if they are installed, or else a line that names them as absent.
        assertThat(report.sizes().getFirst().rates().size()
                        - 9
                        + report.absent().size())
                .isEqualTo(2);
        assertThat(report.sizes()).extracting(TransferReport.Size::tokens).containsExactly(16, 128);
        for (TransferReport.Size size : report.sizes()) {
            assertThat(size.rates()).allSatisfy((_, rate) -> {
                assertThat(rate.bytes()).isEqualTo(size.tokens() * 32L << 10);
                assertThat(rate.best()).isFinite().isGreaterThanOrEqualTo(rate.median());
            });
            assertThat(report.share(size, "TCP"))
                    .isEqualTo(size.rate("TCP").best() / size.rate("plain TCP").best());
        }
        StringWriter text = new StringWriter();
        report.print(new PrintWriter(text));
        assertThat(text.toString())
                .contains(
                        "128 tokens, 4 MiB",
                        "shared memory",
                        "of plain TCP",
                        "and digested",
                        "and written",
                        "16 tokens at");
        assertThat(report.toJson().at("/sizes/1/TCP/bytes").asLong()).isEqualTo(4 << 20);
    }

    @Test
    void refusesInvalidSettings() {
        assertThatThrownBy(() -> new TransferBench(0, List.of(16), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("threads: is 0");
        assertThatThrownBy(() -> new TransferBench(1, List.of(17), Duration.ofSeconds(1), _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tokens: has 17");
    }
}
