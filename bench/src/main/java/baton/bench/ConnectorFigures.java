package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Rounds;
import baton.bench.frame.Table;
import baton.bench.frame.Timing;
import baton.bench.plot.Bars;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** Tables of the figures of {@link ConnectorBench}. */
public final class ConnectorFigures {
    /** The figures of a new prompt: another instance computes it when it is asked for. */
    static final String HANDED_OVER = "handed over";
    /** The figures of a prompt that was computed before and is in a store, not in the instance's pool. */
    static final String HIT = "hit";

    private static final Layout ABOUT = new Layout()
            .text(_ -> "# KV connectors\n\n```\n")
            .machine()
            .text(_ -> "```\n\n")
            .text(ConnectorFigures::load);

    private ConnectorFigures() {}

    private static String load(JsonNode figures) {
        JsonNode load = figures.path("load");
        return String.format(
                Locale.ROOT,
                """
                %s, %d threads for each instance, %,d bytes of KV cache a token. Milliseconds to the first token: median (best) of %d; `alone` is one \
                instance that computes the same prompts, in turns; `+` is the median of the differences. Requests a second: %d clients, prompts of %d tokens, \
                one token of output; in parentheses those of one instance alone.
                """,
                Table.cell(load.path("model").asString()),
                load.path("threads").asInt(),
                load.path("kv_bytes_per_token").asLong(),
                load.path("repetitions").asInt(),
                load.path("clients").asInt(),
                load.path("throughput_tokens").asInt());
    }

    /** All of it, as Markdown; empty without a row. */
    public static String markdown(JsonNode figures) {
        JsonNode connectors = figures.path("connectors");
        if (connectors.isEmpty()) {
            return "";
        }
        return ABOUT.text(figures)
                + measured(figures).markdown()
                + connectors.valueStream().map(ConnectorFigures::reason).collect(Collectors.joining())
                + "\n"
                + Table.of(FACTS, connectors.valueStream()).markdown();
    }

    private static String reason(JsonNode connector) {
        return connector.has("failed")
                ? "\n`%s` failed:\n\n```\n%s\n```\n"
                        .formatted(
                                connector.path("name").asString(),
                                connector.path("failed").asString().replace("```", "'''"))
                : "";
    }

    /** The ways of a connector that were measured. */
    static List<String> ways(JsonNode connector) {
        return Stream.of(HANDED_OVER, HIT)
                .filter(way -> connector
                        .path("first_token")
                        .valueStream()
                        .anyMatch(each -> each.path("prompt").asString().equals(way)))
                .toList();
    }

    /** A row for each way: the connector with only the figures of that way; one without figures if it has none. */
    private static Table measured(JsonNode figures) {
        List<Column> columns = new ArrayList<>(List.of(
                Column.of("connector", "{name}"),
                new Column(
                        "prompt",
                        row -> row.has("failed")
                                ? "failed"
                                : row.has("not_available")
                                        ? "not available: "
                                                + row.path("not_available").asString()
                                        : row.path("way").asString())));
        for (JsonNode tokens : figures.path("load").path("tokens")) {
            String latency = "by_tokens/" + tokens.asInt();
            columns.add(Column.of(
                    String.format(Locale.ROOT, "%,d tokens", tokens.asInt()),
                    "{%1$s/median_seconds|%%.1f|1e3} ({%1$s/best_seconds|%%.1f|1e3})".formatted(latency)));
            columns.add(Column.of(
                    "alone",
                    "{%1$s/alone/median_seconds|%%.1f|1e3} ({%1$s/alone/best_seconds|%%.1f|1e3})".formatted(latency)));
            columns.add(Column.of("+", "{%s/added_seconds|%%+.1f|1e3}".formatted(latency)));
        }
        Column anew = Column.of("", "; {through/computed_anew} of {through/requests} prompts computed anew");
        Column rate = Column.of(
                "requests/s", "{through/requests_per_second|%.1f} ({through/alone_requests_per_second|%.1f})");
        columns.add(new Column(
                rate.head(),
                row -> rate.cell().apply(row)
                        + (row.at("/through/computed_anew").asInt(0) > 0
                                ? anew.cell().apply(row)
                                : "")));
        columns.add(Column.of("KV GB/s", "{through/kv_bytes_per_second|%.3f|1e-9}"));
        columns.add(new Column(
                "answers compared",
                row -> !row.has("through")
                        ? ""
                        : row.path("answers_compared").asInt() + " equal"
                                + (row.path("ties").asInt() == 0
                                        ? ""
                                        : ", " + row.path("ties").asInt() + " left out as ties")));
        return Table.of(columns, figures.path("connectors").valueStream().flatMap(connector -> {
            List<String> ways = ways(connector);
            return ways.isEmpty() ? Stream.of(connector) : ways.stream().map(way -> row(connector, way));
        }));
    }

    private static JsonNode row(JsonNode connector, String way) {
        ObjectNode row = ((ObjectNode) connector).deepCopy().put("way", way);
        ObjectNode byTokens = row.putObject("by_tokens");
        for (JsonNode each : connector.path("first_token")) {
            if (each.path("prompt").asString().equals(way)) {
                byTokens.set(each.path("tokens").asString(), each);
            }
        }
        if (connector.at("/throughput/prompt").asString("").equals(way)) {
            row.set("through", connector.path("throughput"));
        }
        return row;
    }

    private static final List<Column> FACTS = List.of(
            Column.of("connector", "{name}"),
            Column.of("processes", "{processes}"),
            new Column("ports for KV", ConnectorFigures::ports),
            new Column(
                    "settings",
                    row -> row.path("settings")
                            .valueStream()
                            .map(name -> "`" + name.asString() + "`")
                            .collect(Collectors.joining(", "))),
            Column.of("hosts", "{hosts}"),
            Column.of("also needed", "{needs}"),
            Column.of("hardware", "{hardware}"),
            Column.of("keeps for repeated prompts", "{keeps}"),
            Column.of("peers", "{peers}"));

    private static String ports(JsonNode row) {
        if (row.path("kv_ports").isEmpty()) {
            return "";
        }
        String each = row.path("kv_ports")
                .propertyStream()
                .filter(entry -> entry.getValue().asInt() > 0)
                .map(entry -> entry.getKey() + " " + entry.getValue().asInt())
                .collect(Collectors.joining(", "));
        return each.isEmpty() ? "none" : each;
    }

    /** The times to the first token as a picture, beside the median over all connectors of the instance alone. */
    public static String svg(JsonNode figures) {
        List<Integer> tokens = figures.path("load")
                .path("tokens")
                .valueStream()
                .map(JsonNode::asInt)
                .toList();
        List<Bars.Group> groups = new ArrayList<>();
        Rounds alone = new Rounds();
        for (JsonNode connector : figures.path("connectors")) {
            String name = connector.path("name").asString();
            for (String way : ways(connector)) {
                JsonNode latencies = row(connector, way).path("by_tokens");
                List<Optional<Double>> bars = new ArrayList<>();
                for (int each : tokens) {
                    JsonNode latency = latencies.path(Integer.toString(each));
                    bars.add(latency.isMissingNode() ? Optional.empty() : Optional.of(millis(latency)));
                    if (!latency.isMissingNode()) {
                        alone.add(Integer.toString(each), millis(latency.path("alone")));
                    }
                }
                groups.add(new Bars.Group(name + (way.equals(HIT) ? ", hit" : ""), bars, ""));
            }
            if (ways(connector).isEmpty()) {
                String why = connector.has("failed")
                        ? "failed"
                        : "not available: " + connector.path("not_available").asString();
                groups.add(new Bars.Group(name, List.of(), why));
            }
        }
        return new Bars(
                        "Time to the first token by connector, "
                                + figures.path("load").path("model").asString(),
                        "Milliseconds, medians of %d; %s"
                                .formatted(
                                        figures.path("load").path("repetitions").asInt(),
                                        figures.path("machine")
                                                .path("processor")
                                                .asString()),
                        tokens.stream()
                                .map(each -> String.format(Locale.ROOT, "%,d tokens", each))
                                .toList(),
                        "computed by one instance alone",
                        groups,
                        tokens.stream()
                                .map(each -> alone.values(Integer.toString(each)))
                                .map(values -> values.isEmpty() ? Double.NaN : Timing.median(values))
                                .toList())
                .svg();
    }

    private static double millis(JsonNode latency) {
        return latency.path("median_seconds").asDouble() * 1e3;
    }
}
