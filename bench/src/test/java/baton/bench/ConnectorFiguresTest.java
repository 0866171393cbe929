package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;

import baton.bench.frame.Machine;
import baton.bench.frame.Timing;
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
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Tables and picture of figures that are known. */
class ConnectorFiguresTest {
    private static final String HOSTILE = "no \"parts\" & <script>alert('1')</script>\n\u0001| end";

    private static ObjectNode figures() {
        ObjectNode json = JsonNodeFactory.instance.objectNode().put("threads", 1);
        new Machine("A processor <& more>", Optional.of(List.of("avx2")), 2, Map.of())
                .writeTo(json.putObject("machine"));
        json.putObject("load")
                .put("model", "tiny|ledger")
                .put("threads", 1)
                .put("repetitions", 7)
                .put("clients", 8)
                .put("throughput_tokens", 512)
                .put("kv_bytes_per_token", 3072)
                .putArray("tokens")
                .add(512)
                .add(2000);
        ArrayNode rows = json.putArray("connectors");
        ObjectNode first = row(rows, "FirstConnector", "2 instances, router");
        first.putArray("settings").add("a_setting");
        ArrayNode latencies = first.putArray("first_token");
        latency(latencies, "handed over", 512, 0.040, 0.030, 0.0105);
        latency(latencies, "handed over", 2000, 0.160, 0.150, 0.0095);
        latency(latencies, "hit", 512, 0.010, 0.032, -0.022);
        latency(latencies, "hit", 2000, 0.020, 0.152, -0.132);
        first.putObject("throughput")
                .put("prompt", "handed over")
                .put("requests", 200)
                .put("computed_anew", 3)
                .put("requests_per_second", 40.04)
                .put("kv_bytes_per_second", 61.5e6)
                .put("alone_requests_per_second", 39);
        first.put("answers_compared", 214).put("ties", 1).putObject("kv_ports").put("prefill", 2);
        row(rows, "SecondConnector", "1 instance").put("not_available", HOSTILE);
        row(rows, "ThirdConnector", "1 instance").put("failed", "it ended:\n```\n  a log");
        return json;
    }

    private static ObjectNode row(ArrayNode rows, String name, String processes) {
        return rows.addObject()
                .put("name", name)
                .put("processes", processes)
                .put("hosts", "one | several")
                .put("needs", "a directory")
                .put("hardware", "none")
                .put("keeps", "nothing")
                .put("peers", "vLLM <0.32>");
    }

    private static void latency(
            ArrayNode latencies, String way, int tokens, double seconds, double alone, double added) {
        ObjectNode node = latencies.addObject().put("prompt", way).put("tokens", tokens);
        new Timing(seconds, seconds * 0.9, 7).writeTo(node).put("added_seconds", added);
        new Timing(alone, alone * 0.9, 7).writeTo(node.putObject("alone"));
    }

    @Test
    void markdownHasARowForEachWayAndForMissingOnes() {
        String text = ConnectorFigures.markdown(figures());
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
    void theChartIsXmlOfItsOwnWithABarForEachLengthAndALineForTheInstanceAlone() throws Exception {
        Document svg = parse(ConnectorFigures.svg(figures()));
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
        assertThat(ConnectorFigures.svg(figures())).doesNotContain("href", "url(", "@import", "@font-face");
    }

    @Test
    void theChartOfNothingIsXmlToo() throws Exception {
        ObjectNode nothing = figures();
        ((ArrayNode) nothing.path("connectors")).remove(0);
        Document svg = parse(ConnectorFigures.svg(nothing));
        assertThat(elements(svg, "rect", "bar")).hasSize(2);
        assertThat(ConnectorFigures.svg(nothing)).doesNotContain("NaN", "Infinity");
    }

    /** This module has no connectors on its class path. */
    @Test
    void aConnectorThatIsNotThereIsARowThatSaysSo() throws IOException {
        Path model = Path.of(System.getProperty("baton.root", "..")).resolve("models", "tiny-ledger");
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        Thread thread = Thread.currentThread();
        ClassLoader loader = thread.getContextClassLoader();
        // It finds no connector of the class path.
        thread.setContextClassLoader(ClassLoader.getPlatformClassLoader());
        try {
            new ConnectorBench(
                            JavaCommand.likeThisProcess("baton.NoSuchProgram"),
                            false,
                            List.of(),
                            List.of(64, 4096),
                            1,
                            Duration.ofMillis(1),
                            _ -> {})
                    .run(model, json);
        } finally {
            thread.setContextClassLoader(loader);
        }
        assertThat(json.at("/load/tokens")).hasSize(1);
        assertThat(json.path("connectors")
                        .valueStream()
                        .map(row -> row.path("name").asString()))
                .containsExactlyElementsOf(ConnectorCase.names());
        assertThat(json.path("connectors"))
                .allSatisfy(row -> assertThat(row.path("not_available").asString())
                        .contains(row.path("name").asString().replaceFirst("/.*", ""), "class path"));
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
