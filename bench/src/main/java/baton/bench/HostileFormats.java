package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Timing;
import baton.cluster.JavaCommand;
import baton.cluster.WorkerProcess;
import baton.grammar.FormatWarmUp;
import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures formats that are made to take long until they are compiled or refused. Each is the first one of a new JVM that has compiled
 * formats for a second, as the warm-up of a server does.
 *
 * @param repetitions JVMs for each format
 * @param progress receives a line for each format
 */
public record HostileFormats(int repetitions, Consumer<String> progress) {
    private static final Duration WARM_UP = Duration.ofSeconds(1);
    private static final Duration DEADLINE = Duration.ofSeconds(60);
    private static final int LONGEST_RESULT = 70;

    private static final String STRING = "{\"type\":\"string\",";

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head("Hostile formats, each the first of a JVM after the warm-up; ms, the median of {repetitions} JVMs")
            .table(
                    "",
                    "hostile",
                    Column.of("format", "{format}"),
                    Column.of("thread", "{thread|%.0f|1e3}"),
                    Column.of("wall", "{wall|%.0f|1e3}"),
                    Column.of("result", "{result}"));

    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** Measures. */
    public void run(ObjectNode json) throws IOException {
        json.put("repetitions", repetitions);
        ArrayNode rows = json.putArray("hostile");
        JavaCommand command = JavaCommand.likeThisProcess(HostileFormats.class.getName());
        for (String name : formats().keySet()) {
            progress.accept(name);
            ArrayNode tries = JSON.createArrayNode();
            for (int i = 0; i < repetitions; i++) {
                try (WorkerProcess worker = WorkerProcess.start(name, command, List.of(name))) {
                    tries.add(JSON.readTree(worker.receive(DEADLINE)));
                }
            }
            rows.addObject()
                    .put("format", name)
                    .put("thread", median(tries, "thread"))
                    .put("wall", median(tries, "wall"))
                    .put("result", tries.get(0).path("result").asString());
        }
    }

    private static double median(ArrayNode tries, String figure) {
        return Timing.median(
                tries.valueStream().map(each -> each.path(figure).asDouble()).toList());
    }

    /** The process that compiles one format, which its argument names. */
    public static void main(String[] args) {
        OutputFormat format = Objects.requireNonNull(formats().get(args[0]));
        long begin = System.nanoTime();
        FormatWarmUp.run(() -> System.nanoTime() - begin > WARM_UP.toNanos());
        long thread = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long wall = System.nanoTime();
        Optional<String> refused = Optional.empty();
        try {
            Grammar.compile(format.source());
        } catch (ConfigException e) {
            refused = Optional.of("refused: " + e.getMessage());
        }
        String result = refused.orElse("compiled");
        WorkerProcess.answer(JSON.createObjectNode()
                .put("wall", (System.nanoTime() - wall) / 1e9)
                .put("thread", (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - thread) / 1e9)
                .put("result", result.substring(0, Math.min(result.length(), LONGEST_RESULT)))
                .toString());
    }

    /** Formats by their features. */
    static Map<String, OutputFormat> formats() {
        Map<String, String> schemas = new LinkedHashMap<>();
        schemas.put(
                "100 properties", Objects.requireNonNull(GrammarBench.schemas().get("100 properties")));
        schemas.put("400 ranges of numbers", "{\"anyOf\":[%s]}".formatted(list(400, i -> number(i, i * 1000 + 0.123))));
        schemas.put("500 bounded properties", properties(500, i -> number(i + 0.5, i * 31 + 7.25)));
        schemas.put("a multiple of 997", "{\"type\":\"number\",\"multipleOf\":997,\"minimum\":1e-300}");
        schemas.put(
                "all but 2,000 numbers",
                "{\"type\":\"number\",\"not\":{\"enum\":[%s]}}".formatted(list(2_000, i -> String.valueOf(i / 8.0))));
        schemas.put(
                "200 enums of 50 numbers",
                properties(200, i -> "{\"enum\":[%s]}".formatted(list(50, k -> String.valueOf(k * 7919 + i)))));
        schemas.put(
                "an enum of 9,000 strings",
                "{\"enum\":[%s]}".formatted(list(9_000, i -> "\"" + "x".repeat(i % 50) + i + "\"")));
        schemas.put(
                "an enum of 3,000 objects",
                "{\"enum\":[%s]}".formatted(list(3_000, i -> "{\"a\":%1$d,\"b\":[%1$d,{\"c\":%1$d}]}".formatted(i))));
        schemas.put(
                "3,000 items by position",
                "{\"type\":\"array\",\"prefixItems\":[%s]}"
                        .formatted(list(3_000, i -> "{\"enum\":[" + i + ",\"" + i + "\"]}")));
        schemas.put(
                "oneOf of 40 objects",
                "{\"oneOf\":[%s]}"
                        .formatted(list(40, i -> "{\"properties\":{\"a" + i + "\":{\"type\":\"integer\"}}}")));
        schemas.put(
                "300 patterns with lengths",
                properties(300, i -> STRING + "\"pattern\":\"x" + i + ".*y\",\"maxLength\":20}"));
        schemas.put(
                "5 patterns of names beside 500 names",
                "{\"type\":\"object\",\"patternProperties\":{%s},\"properties\":{%s}}"
                        .formatted(
                                list(5, i -> "\"%1$c.*%1$c\":{\"type\":\"integer\"}".formatted('a' + i)),
                                list(500, i -> "\"n" + i + "\":true")));
        schemas.put("900 references to itself", properties(900, _ -> "{\"$ref\":\"#\"}"));
        schemas.put("a date-time with a length", STRING + "\"format\":\"date-time\",\"maxLength\":30}");
        schemas.put("an email with a length", STRING + "\"format\":\"email\",\"maxLength\":30}");
        schemas.put(
                "6 lookaheads",
                STRING + "\"pattern\":\"^(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f).*$\",\"maxLength\":100}");
        schemas.put(
                "an exponential pattern with a length", STRING + "\"pattern\":\"(a|b)*a(a|b){20}\",\"maxLength\":100}");
        Map<String, OutputFormat> formats = new LinkedHashMap<>();
        schemas.forEach(
                (name, schema) -> formats.put(name, new OutputFormat.JsonSchema(schema, SchemaOptions.DEFAULT)));
        formats.put("a regex of 3,000 letters", new OutputFormat.Regex("\\p{L}".repeat(3_000)));
        formats.put("an exponential complement", new OutputFormat.Regex("(?!(a|b)*a(a|b){16}$).*"));
        formats.put(
                "an ambiguous grammar", new OutputFormat.GrammarText("root ::= root root | root \"a\" root | \"b\""));
        return formats;
    }

    private static String list(int size, IntFunction<String> element) {
        return IntStream.range(0, size).mapToObj(element).collect(Collectors.joining(","));
    }

    private static String properties(int size, IntFunction<String> schema) {
        return "{\"type\":\"object\",\"properties\":{%s}}"
                .formatted(list(size, i -> "\"p" + i + "\":" + schema.apply(i)));
    }

    private static String number(double minimum, double maximum) {
        return "{\"type\":\"number\",\"minimum\":" + minimum + ",\"maximum\":" + maximum + "}";
    }
}
