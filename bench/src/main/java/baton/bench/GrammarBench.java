package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.engine.text.Tokenizer;
import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.grammar.automaton.TokenVocabulary;
import baton.grammar.schema.JsonSchemas;
import baton.grammar.schema.SchemaOptions;
import baton.kv.TemporaryDirectory;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the time to compile JSON schemas, and to compute masks of a vocabulary along random texts of the schemas. Where a Python has
 * xgrammar and llguidance, they are measured along the same texts.
 *
 * @param model directory with a tokenizer; the masks are of its vocabulary
 * @param python interpreter with the packages {@code transformers}, {@code xgrammar} and {@code llguidance}
 * @param texts of each schema
 * @param progress receives a line for each step
 */
public record GrammarBench(Path model, Optional<String> python, int texts, Consumer<String> progress) {
    private static final int LONGEST_TEXT = 200;
    private static final int COMPILATIONS = 5;
    private static final int TRIES = 50;
    private static final Pattern UNEVEN = Pattern.compile("[\\\\\\s]");
    private static final String SCRIPT = "grammar_peers.py";

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head("Masks of {size|%,d} tokens; us of the first pass over the texts, and of the second")
            .table(
                    "",
                    "masks",
                    Column.of("schema", "{schema}"),
                    Column.of("engine", "{engine}"),
                    Column.of("compile ms", "{compile|%.1f|1e3}"),
                    Column.of("first median", "{first/median|%.1f|1e6}"),
                    Column.of("first p99", "{first/p99|%.1f|1e6}"),
                    Column.of("median", "{again/median|%.1f|1e6}"),
                    Column.of("p99", "{again/p99|%.1f|1e6}"),
                    Column.of("masks", "{masks|%,d}"),
                    Column.of("refused texts", "{refused}"));

    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** Measures. */
    public void run(ObjectNode json) throws IOException, InterruptedException {
        ArrayNode masks = json.putArray("masks");
        ObjectNode given = JSON.createObjectNode().put("model", model.toString());
        ObjectNode allTexts = given.putObject("texts");
        try (Tokenizer tokenizer = Tokenizer.load(model)) {
            int size = tokenizer.vocabularySize();
            TokenVocabulary vocabulary = tokenizer.grammarVocabulary(size, Set.of());
            json.put("size", size);
            given.put("size", size);
            schemas().forEach((name, schema) -> {
                progress.accept(name);
                given.withObject("schemas").put(name, schema);
                List<List<Integer>> own = texts(tokenizer, grammar(schema, vocabulary), size);
                allTexts.set(name, JSON.valueToTree(own));
                measure(name, schema, vocabulary, own, masks.addObject());
            });
        }
        if (python.isPresent()) {
            measurePeers(python.get(), given, masks);
        }
    }

    private static TokenGrammar grammar(String schema, TokenVocabulary vocabulary) {
        return new TokenGrammar(Grammar.compile(JsonSchemas.source(schema, SchemaOptions.DEFAULT)), vocabulary);
    }

    /**
     * Random texts, with a quotation mark or a bracket now and then where it may come, so that strings and lists end. Escapes and white
     * space, which the engines bound differently, come where nothing else is found.
     */
    private List<List<Integer>> texts(Tokenizer tokenizer, TokenGrammar grammar, int size) {
        List<Integer> closing = Stream.of("\"", "}", "]")
                .flatMap(mark -> tokenizer.id(mark).stream())
                .toList();
        Random random = new Random(texts);
        List<List<Integer>> made = new ArrayList<>();
        for (int i = 0; i < texts; i++) {
            TokenMatcher matcher = grammar.matcher();
            List<Integer> text = new ArrayList<>();
            while (text.size() < LONGEST_TEXT && !matcher.mustEnd()) {
                long[] mask = new long[(size + Long.SIZE - 1) / Long.SIZE];
                matcher.allow(mask);
                BitSet allowed = BitSet.valueOf(mask);
                int token = allowed.nextSetBit(0);
                for (int tries = 0; tries < TRIES; tries++) {
                    int next = allowed.nextSetBit(random.nextInt(size));
                    token = next < 0 ? allowed.previousSetBit(size - 1) : next;
                    if (!UNEVEN.matcher(tokenizer.decode(new int[] {token}, false))
                            .find()) {
                        break;
                    }
                }
                if (random.nextInt(5) == 0) {
                    token = closing.stream().filter(allowed::get).findFirst().orElse(token);
                }
                text.add(token);
                matcher.accept(token);
            }
            made.add(text);
        }
        return made;
    }

    private static void measure(
            String name, String schema, TokenVocabulary vocabulary, List<List<Integer>> texts, ObjectNode row) {
        double[] compilations = new double[COMPILATIONS];
        for (int i = 0; i < COMPILATIONS; i++) {
            long begin = System.nanoTime();
            grammar(schema, vocabulary).matcher();
            compilations[i] = (System.nanoTime() - begin) / 1e9;
        }
        Arrays.sort(compilations);
        row.put("schema", name).put("engine", "baton").put("compile", compilations[COMPILATIONS / 2]);
        TokenGrammar grammar = grammar(schema, vocabulary);
        long[] mask = new long[(vocabulary.size() + Long.SIZE - 1) / Long.SIZE];
        for (String pass : List.of("first", "again")) {
            List<Double> times = new ArrayList<>();
            for (List<Integer> text : texts) {
                TokenMatcher matcher = grammar.matcher();
                for (int token : text) {
                    long begin = System.nanoTime();
                    matcher.allow(mask);
                    times.add((System.nanoTime() - begin) / 1e9);
                    matcher.accept(token);
                }
            }
            summarise(times, row.putObject(pass));
            row.put("masks", times.size());
        }
        row.put("refused", 0);
    }

    private static void summarise(List<Double> times, ObjectNode into) {
        List<Double> sorted = times.stream().sorted().toList();
        into.put("median", sorted.get(sorted.size() / 2)).put("p99", sorted.get(sorted.size() * 99 / 100));
    }

    private void measurePeers(String interpreter, ObjectNode given, ArrayNode masks)
            throws IOException, InterruptedException {
        try (TemporaryDirectory temporary = TemporaryDirectory.create("baton-bench");
                InputStream content = GrammarBench.class.getResourceAsStream(SCRIPT)) {
            if (content == null) {
                throw new IOException("this program has no " + SCRIPT);
            }
            Path script = temporary.path().resolve(SCRIPT);
            Files.write(script, content.readAllBytes());
            Process process = new ProcessBuilder(interpreter, "-B", script.toString())
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            try {
                try (Writer input = process.outputWriter()) {
                    input.write(given.toString());
                }
                Map<String, Double> compilations = new LinkedHashMap<>();
                try (BufferedReader lines = process.inputReader()) {
                    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                        if (line.startsWith("{")) {
                            addPeer(JSON.readTree(line), compilations, masks);
                        } else {
                            progress.accept(line);
                        }
                    }
                }
                if (!process.waitFor(10, TimeUnit.SECONDS) || process.exitValue() != 0) {
                    throw new IOException(interpreter + " did not end with 0 after its last line");
                }
            } finally {
                process.destroyForcibly();
            }
        }
    }

    private void addPeer(JsonNode said, Map<String, Double> compilations, ArrayNode masks) {
        String schema = said.path("schema").asString();
        String engine = said.path("engine").asString();
        String key = engine + " " + schema;
        if (said.has("compile")) {
            progress.accept(key);
            compilations.put(key, said.path("compile").asDouble());
            return;
        }
        ObjectNode row = masks.addObject().put("schema", schema).put("engine", engine);
        row.put("compile", compilations.get(key))
                .put("refused", said.path("refused").asInt());
        for (String pass : List.of("first", "again")) {
            List<Double> times = new ArrayList<>();
            said.path(pass).forEach(time -> times.add(time.asDouble()));
            summarise(times, row.putObject(pass));
            row.put("masks", times.size());
        }
    }

    /** Schemas by their features. */
    static Map<String, String> schemas() {
        Map<String, String> schemas = new LinkedHashMap<>();
        schemas.put(
                "strings", object("\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}", "\"name\",\"age\""));
        schemas.put(
                "bounded strings",
                object(
                        "\"name\":{\"type\":\"string\",\"maxLength\":100},\"code\":{\"type\":\"string\",\"minLength\":5,\"maxLength\":20}",
                        "\"name\",\"code\""));
        schemas.put("any object", "{\"type\":\"object\"}");
        schemas.put(
                "recursive",
                "{\"$defs\":{\"node\":"
                        + object(
                                "\"value\":{\"type\":\"string\"},\"children\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}",
                                "\"value\",\"children\"")
                        + "},\"$ref\":\"#/$defs/node\"}");
        List<String> kinds = List.of(
                "{\"type\":\"string\"}",
                "{\"type\":\"integer\"}",
                "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}",
                "{\"enum\":[\"red\",\"green\",\"blue\"]}",
                "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}$\"}");
        List<String> properties = new ArrayList<>();
        List<String> required = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            properties.add("\"property_%d\":%s".formatted(i, kinds.get(i % kinds.size())));
            required.add("\"property_%d\"".formatted(i));
        }
        schemas.put("100 properties", object(String.join(",", properties), String.join(",", required)));
        return schemas;
    }

    private static String object(String properties, String required) {
        return "{\"type\":\"object\",\"properties\":{%s},\"required\":[%s],\"additionalProperties\":false}"
                .formatted(properties, required);
    }
}
