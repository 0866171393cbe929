package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.ConnectorBench;
import baton.bench.ConnectorCase;
import baton.bench.ConnectorFigures;
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
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class ConnectorBenchTest {
    private static final Path MODEL = Program.ROOT.resolve("models").resolve("tiny-ledger");

    private static ObjectNode run(JavaCommand baton, String... connectors) throws IOException {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new ConnectorBench(baton, false, List.of(connectors), List.of(160, 64), 1, Duration.ofMillis(200), _ -> {})
                .run(MODEL, json);
        return json;
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
        ObjectNode json = run(Program.command(), "SharedStorageConnector");
        assertThat(json.path("connectors")).hasSize(1);
        JsonNode row = json.at("/connectors/0");
        assertThat(row.path("name").asString()).isEqualTo("SharedStorageConnector");
        assertThat(row.path("first_token")
                        .valueStream()
                        .map(each -> each.path("prompt").asString() + " "
                                + each.path("tokens").asInt()))
                .containsExactlyInAnyOrder("handed over 64", "hit 64", "handed over 160", "hit 160");
        assertThat(row.path("first_token")).allSatisfy(each -> {
            assertThat(each.path("median_seconds").asDouble()).isPositive();
            assertThat(each.at("/alone/median_seconds").asDouble()).isPositive();
        });
        JsonNode throughput = row.path("throughput");
        assertThat(throughput.path("prompt").asString()).isEqualTo("handed over");
        assertThat(throughput.path("requests").asInt()).isPositive();
        assertThat(throughput.path("computed_anew").asInt()).isZero();
        assertThat(throughput.path("kv_bytes_per_second").asDouble()).isPositive();
        assertThat(row.path("answers_compared").asInt() + row.path("ties").asInt())
                .isEqualTo(4 + throughput.path("requests").asInt());
        assertThat(ConnectorFigures.markdown(json))
                .contains("| SharedStorageConnector | hit |", "`shared_storage_path`");
    }

    /** Why the rows failed, each of which has no figures. */
    private static List<String> failures(ObjectNode json) {
        assertThat(json.path("connectors"))
                .allSatisfy(row -> assertThat(row.propertyNames()).doesNotContain("first_token", "throughput"));
        return json.path("connectors")
                .valueStream()
                .map(row -> row.path("failed").asString())
                .toList();
    }

    @Test
    void aWrongAnswerFailsItsRowAndLeavesNoFigures() throws IOException {
        assertThat(failures(run(fake("wrong"), "NixlPushConnector")))
                .singleElement()
                .asString()
                .contains("answered with the tokens", "an instance alone answers", "by 2.00");
    }

    @Test
    void anAnswerThatRoundingDecidesIsLeftOut() throws IOException {
        // All of them are, so there is nothing to print.
        assertThat(failures(run(fake("tie"), "NixlPushConnector")))
                .singleElement()
                .asString()
                .contains("ties");
    }

    @Test
    void aPromptThatWasComputedIsNotMeasuredAsHandedOver() throws IOException {
        assertThat(failures(run(fake("computed"), "NixlPushConnector")))
                .singleElement()
                .asString()
                .contains("was not handed over: 0 tokens");
    }

    @Test
    void instancesThatDoNotStartFailTheirRows() throws IOException {
        JavaCommand nothing = new JavaCommand(fake("tie").jvm(), "baton.NoSuchProgram");
        assertThat(failures(run(nothing, "NixlPushConnector", "SharedStorageConnector")))
                .hasSize(2)
                .allSatisfy(failed -> assertThat(failed).contains("process ended", "NoSuchProgram"));
    }
}
