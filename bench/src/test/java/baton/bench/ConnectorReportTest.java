package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;

import baton.bench.ConnectorCase.Facts;
import baton.bench.ConnectorReport.Failed;
import baton.bench.ConnectorReport.Latency;
import baton.bench.ConnectorReport.Load;
import baton.bench.ConnectorReport.Measured;
import baton.bench.ConnectorReport.Row;
import baton.bench.ConnectorReport.Throughput;
import baton.bench.ConnectorReport.Unavailable;
import baton.bench.ConnectorReport.Way;
import baton.cluster.JavaCommand;
import java.io.IOException;
import java.io.StringReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import javax.xml.parsers.DocumentBuilderFactory;
import org.junit.jupiter.api.Test;
import org.w3c.dom.Document;
import org.w3c.dom.Element;
import org.w3c.dom.NodeList;
import org.xml.sax.InputSource;
import tools.jackson.databind.JsonNode;

/** Tables and picture of figures that are known. */
class ConnectorReportTest {
    private static final Facts FACTS = new Facts("one | several", "a directory", "none", "nothing", "vLLM <0.32>");
    private static final String HOSTILE = "no \"parts\" & <script>alert('1')</script>\n\u0001| end";

    private static ConnectorReport report() {
        Measured handedOver = new Measured(
                List.of(
                        latency(Way.HANDED_OVER, 512, 0.040, 0.030, 0.0105),
                        latency(Way.HANDED_OVER, 2000, 0.160, 0.150, 0.0095),
                        latency(Way.HIT, 512, 0.010, 0.032, -0.022),
                        latency(Way.HIT, 2000, 0.020, 0.152, -0.132)),
                new Throughput(Way.HANDED_OVER, 200, 3, 40.04, 61.5e6, 39),
                Map.of("prefill", 2),
                214,
                1);
        return new ConnectorReport(
                new Machine("A processor <& more>", Optional.of(List.of("avx2")), 2, Map.of()),
                new Load("tiny|ledger", 1, List.of(512, 2000), 7, 8, 512, 3072),
                List.of(
                        new Row("FirstConnector", "2 instances, router", List.of("a_setting"), FACTS, handedOver),
                        new Row("SecondConnector", "1 instance", List.of(), FACTS, new Unavailable(HOSTILE)),
                        new Row(
                                "ThirdConnector",
                                "1 instance",
                                List.of(),
                                FACTS,
                                new Failed("it ended:\n```\n  a log"))));
    }

    private static Latency latency(Way way, int tokens, double seconds, double alone, double added) {
        return new Latency(
                way, tokens, new Timing(seconds, seconds * 0.9, 7), new Timing(alone, alone * 0.9, 7), added);
    }

    @Test
    void markdownHasARowForEachWayAndForWhatIsNotMeasured() {
        String text = report().markdown();
        assertThat(text.lines())
                .contains(
                        "| FirstConnector | handed over | 40.0 (36.0) | 30.0 (27.0) | +10.5 | 160.0 (144.0) | 150.0 (135.0) | +9.5 | 40.0 (39.0); 3 of 200 prompts computed anew | 0.062 | 214 equal, 1 left out as ties |",
                        "| FirstConnector | hit | 10.0 (9.0) | 32.0 (28.8) | -22.0 | 20.0 (18.0) | 152.0 (136.8) | -132.0 |  |  |  |",
                        "| ThirdConnector | failed |  |  |  |  |  |  |  |  |  |",
                        "  instruction sets: avx2");
        assertThat(text)
                .contains("not available: no \"parts\" & &lt;script>alert('1')&lt;/script>", "\\| end")
                .contains("`ThirdConnector` failed:\n\n```\nit ended:\n'''\n  a log\n```\n")
                .contains(
                        "| FirstConnector | 2 instances, router | prefill 2 | `a_setting` | one \\| several | a directory | none | nothing | vLLM &lt;0.32> |");
        // Every line of a table has as many cells as its head.
        int cells = 0;
        for (String line : text.lines().toList()) {
            int own = line.startsWith("|") ? line.replace("\\|", "").split("\\|", -1).length : 0;
            assertThat(own).as(line).isIn(cells == 0 ? own : cells, 0);
            cells = own;
        }
    }

    @Test
    void figuresOfARowThatFailedAreNowhere() {
        JsonNode json = report().toJson();
        assertThat(json.at("/connectors/0/first_token/1/median_seconds").asDouble())
                .isEqualTo(0.160);
        assertThat(json.at("/connectors/0/first_token/1/alone/best_seconds").asDouble())
                .isEqualTo(0.135);
        assertThat(json.at("/connectors/0/throughput/kv_bytes_per_second").asDouble())
                .isEqualTo(61.5e6);
        assertThat(json.at("/connectors/1/not_available").asString()).isEqualTo(HOSTILE);
        assertThat(json.at("/connectors/2/failed").asString()).startsWith("it ended");
        assertThat(json.at("/connectors/2").has("throughput")).isFalse();
        assertThat(json.at("/load/tokens").size()).isEqualTo(2);
    }

    @Test
    void theChartIsXmlOfItsOwnWithABarForEachLengthAndALineForTheInstanceAlone() throws Exception {
        Document svg = parse(ConnectorChart.svg(report()));
        List<Element> bars = elements(svg, "rect", "bar");
        // One more of each for the legend.
        assertThat(bars).hasSize(2 + 4);
        assertThat(elements(svg, "line", "alone")).hasSize(1 + 2);
        double first = width(bars.get(2));
        assertThat(width(bars.get(3)) / first).isBetween(3.98, 4.02);
        assertThat(width(bars.get(4)) / first).isBetween(0.24, 0.26);
        List<String> texts =
                elements(svg, "text", "").stream().map(Element::getTextContent).toList();
        assertThat(texts)
                .contains(
                        "FirstConnector",
                        "FirstConnector, hit",
                        "160",
                        "151",
                        "failed",
                        "Time to the first token by connector, tiny|ledger",
                        "Milliseconds, medians of 7; A processor <& more>")
                .anyMatch(text -> text.startsWith("not available: no \"parts\" & <script>alert('1')"));
        assertThat(elements(svg, "script", "")).isEmpty();
        assertThat(ConnectorChart.svg(report())).doesNotContain("href", "url(", "@import", "@font-face");
    }

    @Test
    void theChartOfNothingIsXmlToo() throws Exception {
        ConnectorReport all = report();
        ConnectorReport nothing =
                new ConnectorReport(all.machine(), all.load(), all.rows().subList(1, 3));
        Document svg = parse(ConnectorChart.svg(nothing));
        assertThat(elements(svg, "rect", "bar")).hasSize(2);
        assertThat(ConnectorChart.svg(nothing)).doesNotContain("NaN", "Infinity");
    }

    /** This module has no connectors on its class path. */
    @Test
    void aConnectorThatIsNotThereIsARowThatSaysSo() throws IOException {
        Path model = Path.of(System.getProperty("baton.root", "..")).resolve("models", "tiny-ledger");
        ConnectorReport report = new ConnectorBench(
                        JavaCommand.likeThisProcess("baton.NoSuchProgram"),
                        false,
                        List.of(),
                        List.of(64, 4096),
                        1,
                        Duration.ofMillis(1),
                        _ -> {})
                .run(model);
        assertThat(report.load().tokens()).containsExactly(64);
        assertThat(report.rows()).extracting(Row::name).containsExactlyElementsOf(ConnectorCase.names());
        assertThat(report.rows())
                .allSatisfy(row -> assertThat(row.outcome())
                        .isInstanceOfSatisfying(
                                Unavailable.class,
                                absent -> assertThat(absent.reason())
                                        .contains(row.name().replaceFirst("/.*", ""), "class path")));
    }

    private static Document parse(String svg) throws Exception {
        DocumentBuilderFactory factory = DocumentBuilderFactory.newInstance();
        factory.setFeature("http://apache.org/xml/features/disallow-doctype-decl", true);
        return factory.newDocumentBuilder().parse(new InputSource(new StringReader(svg)));
    }

    private static List<Element> elements(Document svg, String name, String kind) {
        List<Element> elements = new ArrayList<>();
        NodeList nodes = svg.getElementsByTagName(name);
        for (int i = 0; i < nodes.getLength(); i++) {
            if (nodes.item(i) instanceof Element element
                    && element.getAttribute("class").startsWith(kind)) {
                elements.add(element);
            }
        }
        return elements;
    }

    private static double width(Element bar) {
        return Double.parseDouble(bar.getAttribute("width"));
    }
}
