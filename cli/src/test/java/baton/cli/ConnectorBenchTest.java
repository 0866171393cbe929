package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.ConnectorBench;
import baton.bench.ConnectorCase;
import baton.bench.ConnectorReport;
import baton.bench.ConnectorReport.Failed;
import baton.bench.ConnectorReport.Measured;
import baton.bench.ConnectorReport.Row;
import baton.bench.ConnectorReport.Way;
import baton.cluster.JavaCommand;
import baton.kv.ConfigException;
import baton.kv.connector.KvConnector;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.ServiceLoader;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

class ConnectorBenchTest {
    private static final Path MODEL = Program.ROOT.resolve("models").resolve("tiny-ledger");

    private static ConnectorReport run(JavaCommand baton, String... connectors) throws IOException {
        return new ConnectorBench(
                        baton, false, List.of(connectors), List.of(160, 64), 1, Duration.ofMillis(200), _ -> {})
                .run(MODEL);
    }

    /** The stand-in for Baton, in processes of its own. */
    private static JavaCommand fake(String what) {
        String classPath = System.getProperty("java.class.path");
        return new JavaCommand(
                List.of(
                        ProcessHandle.current().info().command().orElseThrow(),
                        "-XX:TieredStopAtLevel=1",
                        "-XX:+UseSerialGC",
                        "-Dfake=" + what,
                        "-cp",
                        classPath),
                FakeBaton.class.getName());
    }

    @Test
    void everyRegisteredConnectorHasARow() {
        List<String> rows = ConnectorCase.names().stream()
                .map(name -> name.replaceFirst("/.*", ""))
                .toList();
        assertThat(ServiceLoader.load(KvConnector.class))
                .isNotEmpty()
                .allSatisfy(connector -> assertThat(connector.names()).containsAnyElementsOf(rows));
    }

    @Test
    void unknownConnectorsAreNamedWithTheKnownOnes() {
        assertThatThrownBy(() -> run(fake("tie"), "NoSuchConnector"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("connector", "NoSuchConnector", "NixlConnector/pull");
    }

    @Tag("thorough")
    @Test
    void measuresAHandOverAndAHitOfRealInstancesBesideOneAlone() throws IOException {
        ConnectorReport report = run(Program.command(), "SharedStorageConnector");

        assertThat(report.rows()).extracting(Row::name).containsExactly("SharedStorageConnector");
        assertThat(report.rows().getFirst().outcome()).isInstanceOfSatisfying(Measured.class, measured -> {
            assertThat(measured.latencies())
                    .extracting(each -> each.way() + " " + each.tokens())
                    .containsExactlyInAnyOrder("HANDED_OVER 64", "HIT 64", "HANDED_OVER 160", "HIT 160");
            assertThat(measured.latencies()).allSatisfy(each -> {
                assertThat(each.timing().median()).isPositive();
                assertThat(each.alone().median()).isPositive();
            });
            assertThat(measured.throughput().way()).isEqualTo(Way.HANDED_OVER);
            assertThat(measured.throughput().requests()).isPositive();
            assertThat(measured.throughput().anew()).isZero();
            assertThat(measured.throughput().bytesPerSecond()).isPositive();
            assertThat(measured.compared() + measured.ties())
                    .isEqualTo(4 + measured.throughput().requests());
        });
        assertThat(report.markdown()).contains("| SharedStorageConnector | hit |", "`shared_storage_path`");
    }

    @Test
    void aWrongAnswerFailsItsRowAndLeavesNoFigures() throws IOException {
        ConnectorReport report = run(fake("wrong"), "NixlPushConnector");
        assertThat(report.rows())
                .hasSize(1)
                .allSatisfy(row -> assertThat(row.outcome())
                        .isInstanceOfSatisfying(
                                Failed.class,
                                failed -> assertThat(failed.reason())
                                        .contains("answered with the tokens", "an instance alone answers", "by 2.00")));
    }

    @Test
    void anAnswerThatRoundingDecidesIsLeftOut() throws IOException {
        // All of them are, so there is nothing to print.
        assertThat(run(fake("tie"), "NixlPushConnector").rows().getFirst().outcome())
                .isInstanceOfSatisfying(
                        Failed.class, failed -> assertThat(failed.reason()).contains("ties"));
    }

    @Test
    void aPromptThatWasComputedIsNotMeasuredAsHandedOver() throws IOException {
        assertThat(run(fake("computed"), "NixlPushConnector").rows().getFirst().outcome())
                .isInstanceOfSatisfying(
                        Failed.class, failed -> assertThat(failed.reason()).contains("was not handed over: 0 tokens"));
    }

    @Test
    void instancesThatDoNotStartFailTheirRows() throws IOException {
        JavaCommand nothing = new JavaCommand(fake("tie").jvm(), "baton.NoSuchProgram");
        assertThat(run(nothing, "NixlPushConnector", "SharedStorageConnector").rows())
                .hasSize(2)
                .allSatisfy(row -> assertThat(row.outcome())
                        .isInstanceOfSatisfying(
                                Failed.class,
                                failed -> assertThat(failed.reason()).contains("process ended", "NoSuchProgram")));
    }
}
