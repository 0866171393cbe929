package baton.grammar.schema;

import static org.assertj.core.api.Assertions.assertThat;

import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.MatchLimitException;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.grammar.automaton.TokenVocabulary;
import baton.kv.ConfigException;
import com.networknt.schema.Error;
import com.networknt.schema.InputFormat;
import com.networknt.schema.Schema;
import com.networknt.schema.SchemaRegistry;
import com.networknt.schema.SpecificationVersion;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.exc.JsonNodeException;
import tools.jackson.databind.json.JsonMapper;

/** Random walks through the grammars of random schemas, with another validator as the judge. */
class RandomSchemasTest {
    private static final long SEED = Long.getLong("tests.seed", System.nanoTime());
    private static final int SCHEMAS = Integer.getInteger("tests.schemas", 200);
    private static final int HOSTILE = 500;
    private static final int WALKS = 5;
    private static final int LONG = 200;
    private static final int LONGEST = 5_000;

    /** Much more than a schema takes, so that only a translation that does not end fails. */
    private static final Duration SOON = Duration.ofSeconds(60);

    private static final Pattern MANY_DIGITS = Pattern.compile("\\d{16}");

    private static final int END = 256;
    private static final TokenVocabulary BYTES = TokenVocabulary.of(
            END + 1, token -> token == END ? new byte[0] : new byte[] {(byte) token}, Map.of(), Set.of(END));
    private static final JsonMapper MAPPER = JsonMapper.shared();

    private final SchemaRegistry judge = SchemaRegistry.withDefaultDialect(SpecificationVersion.DRAFT_2020_12);

    @Test
    void everyWalkEndsInAValidDocument() {
        int judged = 0;
        int refused = 0;
        int endless = 0;
        int unjudged = 0;
        for (int i = 0; i < SCHEMAS; i++) {
            Random random = new Random(SEED + i);
            String schema = MAPPER.writeValueAsString(new RandomSchemas(random, false).schema());
            SchemaOptions options = i % 2 == 0 ? SchemaOptions.DEFAULT : SchemaOptions.DEFAULT.withAnyOrder();
            TokenGrammar grammar;
            try {
                grammar = new TokenGrammar(Grammar.compile(JsonSchemas.source(schema, options)), BYTES);
            } catch (ConfigException _) {
                refused++;
                continue;
            }
            Schema judgement = judge.getSchema(schema);
            for (int walk = 0; walk < WALKS; walk++) {
                Optional<String> walked;
                try {
                    walked = walk(grammar.matcher(), random);
                } catch (MatchLimitException _) {
                    // It is nested too deeply.
                    walked = Optional.empty();
                }
                if (walked.isEmpty()) {
                    endless++;
                    continue;
                }
                String document = walked.get();
                List<Error> errors;
                try {
                    errors = judgement.validate(
                            document,
                            InputFormat.JSON,
                            context -> context.executionConfig(config -> config.formatAssertionsEnabled(true)));
                } catch (JsonNodeException _) {
                    // The judge compares integers only if they have 64 bits.
                    unjudged++;
                    continue;
                }
                if (!errors.isEmpty() && MANY_DIGITS.matcher(document).find()) {
                    // The judge computes multiples of numbers with a fraction in doubles.
                    unjudged++;
                    continue;
                }
                assertThat(errors)
                        .as("-Dtests.seed=%d %s %s", SEED + i, schema, document)
                        .isEmpty();
                judged++;
            }
        }
        System.out.println(
                "Random schemas: " + judged + " documents, " + refused + " schemas refused, -Dtests.seed=" + SEED);
        assertThat(endless + unjudged).as("-Dtests.seed=%d", SEED).isLessThan(judged / 10);
        assertThat(refused).as("-Dtests.seed=%d", SEED).isLessThan(SCHEMAS / 2);
    }

    @Test
    void hostileSchemasEndInAGrammarOrARefusal() {
        long started = System.nanoTime();
        for (int i = 0; i < HOSTILE; i++) {
            Random random = new Random(SEED + i);
            String schema = MAPPER.writeValueAsString(new RandomSchemas(random, false).hostile());
            long start = System.nanoTime();
            try {
                Grammar.compile(JsonSchemas.source(schema, SchemaOptions.DEFAULT));
            } catch (ConfigException e) {
                assertThat(e.getMessage()).as(schema).isNotBlank();
            } catch (RuntimeException | StackOverflowError e) {
                throw new AssertionError("-Dtests.seed=" + (SEED + i) + " " + schema, e);
            }
            assertThat(Duration.ofNanos(System.nanoTime() - start))
                    .as("-Dtests.seed=%d %s", SEED + i, schema)
                    .isLessThan(SOON);
        }
        System.out.println("Hostile schemas: " + (System.nanoTime() - started) / 1_000_000 / HOSTILE + " ms each");
    }

    /**
     * A document with random bytes until it is long. Empty if it does not end, as where a required property has to come
     * among others in any order.
     */
    private static Optional<String> walk(TokenMatcher matcher, Random random) {
        ByteArrayOutputStream document = new ByteArrayOutputStream();
        long[] mask = new long[END / Long.SIZE + 1];
        while (document.size() < LONGEST) {
            matcher.allow(mask);
            int[] allowed = IntStream.range(0, END + 1)
                    .filter(token -> (mask[token / Long.SIZE] >> token % Long.SIZE & 1) == 1)
                    .toArray();
            assertThat(allowed)
                    .as("after %s", document.toString(StandardCharsets.UTF_8))
                    .isNotEmpty();
            boolean isEnding = document.size() > LONG || random.nextInt(4) == 0;
            int[] closing = Arrays.stream(allowed)
                    .filter(token -> token == END || token == '}' || token == ']' || token == '"')
                    .toArray();
            int[] candidates = isEnding && closing.length > 0 ? closing : allowed;
            int token = candidates[random.nextInt(candidates.length)];
            if (token == END) {
                return Optional.of(document.toString(StandardCharsets.UTF_8));
            }
            assertThat(matcher.accept(token)).isTrue();
            document.write(token);
        }
        return Optional.empty();
    }
}
