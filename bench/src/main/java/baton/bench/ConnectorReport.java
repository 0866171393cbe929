package baton.bench;

import baton.bench.ConnectorCase.Facts;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** What {@link ConnectorBench} measured, in one run. */
public record ConnectorReport(Machine machine, Load load, List<Row> rows) {
    public ConnectorReport {
        rows = List.copyOf(rows);
    }

    /**
     * What was asked of each connector.
     *
     * @param model its name
     * @param threads that each instance computes with
     * @param tokens of the prompts that latency was measured with
     * @param clients that ask at the same time, for throughput
     * @param throughputTokens of their prompts
     * @param bytesPerToken of a KV cache
     */
    public record Load(
            String model,
            int threads,
            List<Integer> tokens,
            int repetitions,
            int clients,
            int throughputTokens,
            long bytesPerToken) {
        public Load {
            tokens = List.copyOf(tokens);
        }
    }

    /** How an instance comes by a prompt's KV cache. */
    public enum Way {
        /** Of a new prompt: another instance computes it when it is asked for. */
        HANDED_OVER("handed over"),
        /** Of a prompt that was computed before and is in a store, not in the instance's pool. */
        HIT("hit");

        private final String label;

        Way(String label) {
            this.label = label;
        }

        public String label() {
            return label;
        }
    }

    /**
     * One connector.
     *
     * @param processes in words
     * @param settings names of those that it was given
     */
    public record Row(String name, String processes, List<String> settings, Facts facts, Outcome outcome) {
        static Row of(ConnectorCase from, Outcome outcome) {
            return new Row(from.name(), from.processes(), from.settings(), from.facts(), outcome);
        }

        List<Latency> latencies() {
            return outcome instanceof Measured measured ? measured.latencies : List.of();
        }
    }

    /** What became of a row. */
    public sealed interface Outcome {}

    /**
     * Figures; the answers that they are of were those of the instance alone.
     *
     * @param ports that processes listen on beside the one for HTTP, by the process's name; empty where that cannot be told
     * @param compared answers
     * @param ties answers left out, as the two most probable tokens were equal but for rounding, and another one came
     */
    public record Measured(
            List<Latency> latencies, Throughput throughput, Map<String, Integer> ports, int compared, int ties)
            implements Outcome {
        public Measured {
            latencies = List.copyOf(latencies);
        }
    }

    /** It was begun and did not work. */
    public record Failed(String reason) implements Outcome {}

    /** Something is not there. */
    public record Unavailable(String reason) implements Outcome {}

    /**
     * The time to the first token, at the client.
     *
     * @param timing of the connector
     * @param alone one instance that computes the same prompts, in turns with the connector
     * @param added median of the differences between both for the same prompt, in seconds
     */
    public record Latency(Way way, int tokens, Timing timing, Timing alone, double added) {}

    /**
     * Several clients, each of which asks again when it is answered.
     *
     * @param anew how many of the prompts were computed although they should not have been
     * @param bytesPerSecond of KV caches that were not computed where they were used
     * @param alone requests a second that one instance alone answers, asked the same prompts in the same way
     */
    public record Throughput(
            Way way, int requests, int anew, double requestsPerSecond, double bytesPerSecond, double alone) {}

    /** All of it, as Markdown. */
    public String markdown() {
        StringBuilder out = new StringBuilder("# KV connectors\n\n");
        StringWriter lines = new StringWriter();
        try (PrintWriter printer = new PrintWriter(lines)) {
            machine.print(printer, load.threads);
        }
        out.append("```\n").append(lines).append("```\n\n");
        out.append(String.format(
                Locale.ROOT,
                """
                %s, %d threads for each instance, %,d bytes of KV cache a token. Milliseconds to the first token: median (best) of %d; `alone` is one \
                instance that computes the same prompts, in turns; `+` is the median of the differences. Requests a second: %d clients, prompts of %d tokens, \
                one token of output; in parentheses those of one instance alone.

                """,
                cell(load.model),
                load.threads,
                load.bytesPerToken,
                load.repetitions,
                load.clients,
                load.throughputTokens));
        figures(out);
        reasons(out);
        facts(out);
        return out.toString();
    }

    private void figures(StringBuilder out) {
        List<String> head = new ArrayList<>(List.of("connector", "prompt"));
        for (int tokens : load.tokens) {
            head.addAll(List.of(String.format(Locale.ROOT, "%,d tokens", tokens), "alone", "+"));
        }
        head.addAll(List.of("requests/s", "KV GB/s", "answers compared"));
        row(out, head);
        row(out, Collections.nCopies(head.size(), "---"));
        for (Row row : rows) {
            switch (row.outcome) {
                case Measured measured -> {
                    for (Way way : Way.values()) {
                        if (measured.latencies.stream().anyMatch(each -> each.way == way)) {
                            row(out, cells(row, measured, way));
                        }
                    }
                }
                case Failed _ -> row(out, filled(row, "failed", head.size()));
                case Unavailable unavailable ->
                    row(out, filled(row, "not available: " + unavailable.reason, head.size()));
            }
        }
    }

    private List<String> cells(Row row, Measured measured, Way way) {
        List<String> cells = new ArrayList<>(List.of(row.name, way.label));
        for (int tokens : load.tokens) {
            Optional<Latency> latency = measured.latencies.stream()
                    .filter(each -> each.way == way && each.tokens == tokens)
                    .findFirst();
            cells.add(latency.map(each -> millis(each.timing)).orElse(""));
            cells.add(latency.map(each -> millis(each.alone)).orElse(""));
            cells.add(latency.map(each -> String.format(Locale.ROOT, "%+.1f", each.added * 1e3))
                    .orElse(""));
        }
        Throughput throughput = measured.throughput;
        boolean here = throughput.way == way;
        String anew = throughput.anew == 0
                ? ""
                : "; %d of %d prompts computed anew".formatted(throughput.anew, throughput.requests);
        cells.add(
                here
                        ? String.format(
                                Locale.ROOT, "%.1f (%.1f)%s", throughput.requestsPerSecond, throughput.alone, anew)
                        : "");
        cells.add(here ? String.format(Locale.ROOT, "%.3f", throughput.bytesPerSecond / 1e9) : "");
        cells.add(
                here
                        ? measured.compared + " equal"
                                + (measured.ties == 0 ? "" : ", " + measured.ties + " left out as ties")
                        : "");
        return cells;
    }

    private static List<String> filled(Row row, String why, int columns) {
        List<String> cells = new ArrayList<>(Collections.nCopies(columns, ""));
        cells.set(0, row.name);
        cells.set(1, why);
        return cells;
    }

    private void reasons(StringBuilder out) {
        for (Row row : rows) {
            if (row.outcome instanceof Failed failed) {
                out.append("\n`")
                        .append(row.name)
                        .append("` failed:\n\n```\n")
                        .append(failed.reason.replace("```", "'''"))
                        .append("\n```\n");
            }
        }
        out.append('\n');
    }

    private void facts(StringBuilder out) {
        List<String> head = List.of(
                "connector",
                "processes",
                "ports for KV",
                "settings",
                "hosts",
                "also needed",
                "hardware",
                "keeps for repeated prompts",
                "peers");
        row(out, head);
        row(out, Collections.nCopies(head.size(), "---"));
        for (Row row : rows) {
            row(
                    out,
                    List.of(
                            row.name,
                            row.processes,
                            ports(row),
                            row.settings.stream().map(name -> "`" + name + "`").collect(Collectors.joining(", ")),
                            row.facts.hosts(),
                            row.facts.needs(),
                            row.facts.hardware(),
                            row.facts.keeps(),
                            row.facts.peers()));
        }
    }

    private static String ports(Row row) {
        if (!(row.outcome instanceof Measured measured) || measured.ports.isEmpty()) {
            return "";
        }
        String each = measured.ports.entrySet().stream()
                .filter(entry -> entry.getValue() > 0)
                .map(entry -> entry.getKey() + " " + entry.getValue())
                .collect(Collectors.joining(", "));
        return each.isEmpty() ? "none" : each;
    }

    private static void row(StringBuilder out, List<String> cells) {
        out.append(cells.stream().map(ConnectorReport::cell).collect(Collectors.joining(" | ", "| ", " |\n")));
    }

    /** On one line, and without a character that ends a cell. */
    private static String cell(String text) {
        return text.strip()
                .replace("\\", "\\\\")
                .replace("|", "\\|")
                .replace("<", "&lt;")
                .replaceAll("\\s+", " ");
    }

    private static String millis(Timing timing) {
        return String.format(Locale.ROOT, "%.1f (%.1f)", timing.median() * 1e3, timing.best() * 1e3);
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        machine.writeTo(root.putObject("machine"));
        ObjectNode asked = root.putObject("load")
                .put("model", load.model)
                .put("threads", load.threads)
                .put("repetitions", load.repetitions)
                .put("clients", load.clients)
                .put("throughput_tokens", load.throughputTokens)
                .put("kv_bytes_per_token", load.bytesPerToken);
        load.tokens.forEach(asked.putArray("tokens")::add);
        ArrayNode all = root.putArray("connectors");
        for (Row row : rows) {
            ObjectNode node = all.addObject().put("name", row.name).put("processes", row.processes);
            row.settings.forEach(node.putArray("settings")::add);
            node.put("hosts", row.facts.hosts())
                    .put("needs", row.facts.needs())
                    .put("hardware", row.facts.hardware())
                    .put("keeps", row.facts.keeps())
                    .put("peers", row.facts.peers());
            switch (row.outcome) {
                case Measured measured -> writeTo(node, measured);
                case Failed failed -> node.put("failed", failed.reason);
                case Unavailable unavailable -> node.put("not_available", unavailable.reason);
            }
        }
        return root;
    }

    private static void writeTo(ObjectNode node, Measured measured) {
        ArrayNode latencies = node.putArray("first_token");
        for (Latency latency : measured.latencies) {
            ObjectNode each =
                    latencies.addObject().put("prompt", latency.way.label).put("tokens", latency.tokens);
            EngineReport.timing(each, latency.timing);
            EngineReport.timing(each.putObject("alone"), latency.alone);
            each.put("added_seconds", latency.added);
        }
        Throughput throughput = measured.throughput;
        node.putObject("throughput")
                .put("prompt", throughput.way.label)
                .put("requests", throughput.requests)
                .put("computed_anew", throughput.anew)
                .put("requests_per_second", throughput.requestsPerSecond)
                .put("kv_bytes_per_second", throughput.bytesPerSecond)
                .put("alone_requests_per_second", throughput.alone);
        ObjectNode ports = node.putObject("kv_ports");
        measured.ports.forEach(ports::put);
        node.put("answers_compared", measured.compared).put("ties", measured.ties);
    }
}
