package baton.grammar;

import baton.grammar.automaton.Grammar;
import baton.grammar.schema.SchemaOptions;
import java.util.List;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Compiles formats of many kinds, so that the JVM has loaded and compiled the code before the first request with a format comes: interpreted code
 * takes ten times as long.
 */
public final class FormatWarmUp {
    private static final int MOST_PROPERTIES = 100;

    /** Schemas of properties; each has another number in place of an {@code @}, as equal schemas are compiled once. */
    private static final List<String> PROPERTIES = List.of(
            "{\"type\":\"string\"}",
            "{\"type\":\"integer\",\"minimum\":@}",
            "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}",
            "{\"enum\":[\"red\",\"green@\",@]}",
            "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,8}$\",\"maxLength\":@5}",
            "{\"type\":\"string\",\"format\":\"date\"}",
            "{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":@.25}",
            "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":9},{\"$ref\":\"#\"}]}",
            "{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){3}@\"},{\"type\":\"integer\",\"multipleOf\":3}]}",
            "{\"type\":\"string\",\"not\":{\"pattern\":\"a@.*b\"}}",
            "{\"allOf\":[{\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":\"null\"}}}],\"maxProperties\":3}",
            "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"const\":1.5}},\"additionalProperties\":false}");

    private static final List<OutputFormat> OTHERS = List.of(
            new OutputFormat.Regex("(?=.*\\d)[\\p{L}\\d]{3,40}(?:@\\w+)*"),
            new OutputFormat.Choices(List.of("yes", "no", "don't know")),
            new OutputFormat.GrammarText("root ::= root [-+] term | term\nterm ::= [0-9]+ | \"(\" root \")\""),
            new OutputFormat.GrammarText("start: item (\",\" item)*\nitem: /[a-z]+/ | \"[\" start \"]\""));

    private FormatWarmUp() {}

    /** Compiles one after the other, at least one, until it is over. */
    public static void run(BooleanSupplier isOver) {
        int done = 0;
        do {
            int properties = MOST_PROPERTIES >> done % 4;
            int first = done++;
            String schema = IntStream.range(0, properties)
                    .mapToObj(at -> "\"p" + at + "\":" + property(first + at))
                    .collect(Collectors.joining(",", "{\"type\":\"object\",\"properties\":{", "}}"));
            Grammar.compile(new OutputFormat.JsonSchema(schema, SchemaOptions.DEFAULT).source());
            Grammar.compile(OTHERS.get(first % OTHERS.size()).source());
        } while (!isOver.getAsBoolean());
    }

    private static String property(int number) {
        return PROPERTIES.get(number % PROPERTIES.size()).replace("@", Integer.toString(number));
    }
}
