package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.RequestOutput.Completion;
import baton.engine.SamplingParams;
import baton.grammar.OutputFormat;
import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.grammar.automaton.TokenVocabulary;
import baton.grammar.schema.RandomSchemas;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.testkit.RealModels;
import com.networknt.schema.Schema;
import com.networknt.schema.SchemaRegistry;
import com.networknt.schema.SpecificationVersion;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.DeserializationFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.BigIntegerNode;
import tools.jackson.databind.node.DecimalNode;
import tools.jackson.databind.node.ObjectNode;

/** Outputs at a high temperature are documents of their random schemas, by the judgement of another validator. */
class RandomSchemasTest {
    private static final int GENERATIONS = Integer.getInteger("tests.generations", 320);
    private static final int FUZZED = Integer.getInteger("tests.fuzzed", 100);
    /** The judge takes numbers with fractions and exponents as {@code double}, although integers may be written so. */
    private static final JsonMapper JSON = JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .build();

    private static final int SAMPLES = 10;
    private static final int AT_ONCE = 12;

    private final long seed = Long.getLong("tests.seed", System.nanoTime());
    private final SchemaRegistry judges = SchemaRegistry.withDefaultDialect(SpecificationVersion.DRAFT_2020_12);
    private final Map<String, Integer> ends = new TreeMap<>();

    /** The format with any white space, or with little, so that fewer outputs are cut. */
    private static OutputFormat format(String schema) {
        boolean any = schema.length() % 8 == 0;
        return new OutputFormat.JsonSchema(
                schema, any ? SchemaOptions.DEFAULT : new SchemaOptions(false, false, Optional.of(" ?"), false));
    }

    private static SamplingParams sampling(String schema, int samples, int maxTokens, long seed) {
        return SamplingParams.builder()
                .temperature(1.5)
                .n(samples)
                .seed(seed)
                .maxTokens(maxTokens)
                .format(format(schema))
                .build();
    }

    @Test
    void theLedgersModelWritesValidDocuments() {
        documentsAreValid(LLMTest.MODEL, GENERATIONS);
    }

    @Test
    @Tag("real")
    void aPublishedModelWritesValidDocuments() {
        documentsAreValid(RealModels.SMOLLM2.assumeCheckpoint(), GENERATIONS);
    }

    private void documentsAreValid(Path model, int generations) {
        RandomSchemas random = new RandomSchemas(new Random(seed), true);
        try (LLM llm = new LLM(EngineConfig.of(model).maxModelLen(1024).build())) {
            TokenVocabulary vocabulary = llm.engine()
                    .tokenizer()
                    .grammarVocabulary(llm.engine().model().vocabularySize(), Set.of());
            int[] prompt = llm.engine().tokenizer().encode("A document of JSON:\n", true);
            for (int done = 0; done < generations; done += AT_ONCE * SAMPLES) {
                Map<GenerationCollector, String> asked = new LinkedHashMap<>();
                for (int i = 0; i < AT_ONCE; i++) {
                    String schema = schema(random);
                    GenerationRequest request = new GenerationRequest(
                            "r" + (done + i), prompt, sampling(schema, SAMPLES, 300, seed + done + i));
                    GenerationCollector collector = new GenerationCollector(request);
                    llm.engine().submit(request, collector);
                    asked.put(collector, schema);
                }
                asked.forEach((collector, schema) -> check(schema, collector.join(), vocabulary));
            }
        }
        System.out.println("tests.seed=" + seed + " " + model.getFileName() + ": " + ends);
        assertThat(ends.getOrDefault("stop", 0)).as("documents").isGreaterThan(generations * 2 / 3);
    }

    /** A schema that has documents. */
    private static String schema(RandomSchemas random) {
        while (true) {
            String schema = JSON.writeValueAsString(random.schema());
            try {
                Grammar.compile(format(schema).source());
                return schema;
            } catch (ConfigException _) {
                // Another one has.
            }
        }
    }

    private void check(String schema, RequestOutput output, TokenVocabulary vocabulary) {
        Schema judge = judges.getSchema(schema);
        for (Completion completion : output.completions()) {
            String what = "tests.seed=%d %s of %s".formatted(seed, completion, schema);
            ends.merge(completion.reason().wireName(), 1, Integer::sum);
            switch (completion.reason()) {
                case STOP ->
                    assertThat(judge.validate(
                                    whole(JSON.readTree(completion.text())),
                                    context -> context.executionConfig(config -> config.formatAssertionsEnabled(true))))
                            .as(what)
                            .isEmpty();
                case LENGTH -> {
                    TokenMatcher matcher =
                            new TokenGrammar(Grammar.compile(format(schema).source()), vocabulary).matcher();
                    assertThat(IntStream.of(completion.tokens()).allMatch(matcher::accept))
                            .as(what)
                            .isTrue();
                }
                case ERROR, ABORT, CACHE_THRESHOLD -> throw new AssertionError(what);
            }
        }
    }

    /** The same with integers where numbers are. */
    private static JsonNode whole(JsonNode node) {
        switch (node) {
            case ObjectNode object -> object.properties().forEach(each -> each.setValue(whole(each.getValue())));
            case ArrayNode array -> {
                for (int i = 0; i < array.size(); i++) {
                    array.set(i, whole(array.get(i)));
                }
            }
            case DecimalNode number
            when number.decimalValue().stripTrailingZeros().scale() <= 0 -> {
                return BigIntegerNode.valueOf(number.decimalValue().toBigInteger());
            }
            default -> {}
        }
        return node;
    }

    @Test
    void noSchemaStopsTheEngine() {
        RandomSchemas random = new RandomSchemas(new Random(seed), true);
        int compiled = 0;
        try (LLM llm = new LLM(LLMTest.config().maxModelLen(256).build())) {
            for (int i = 0; i < FUZZED; i++) {
                String schema = JSON.writeValueAsString(random.hostile());
                SamplingParams sampling = sampling(schema, 1, 20, seed + i);
                try {
                    llm.engine().prepare(sampling);
                } catch (ConfigException e) {
                    assertThat(e.field()).as("tests.seed=%d %s", seed, e).matches("(schema|grammar).*");
                    continue;
                }
                compiled++;
                Completion completion =
                        llm.generate("A", sampling).completions().getFirst();
                assertThat(completion.reason())
                        .as("tests.seed=%d %s", seed, schema)
                        .isIn(FinishReason.STOP, FinishReason.LENGTH);
            }
            assertThat(llm.generate("A", SamplingParams.greedy(2)).tokens()).hasSize(2);
        }
        System.out.println("tests.seed=" + seed + ": " + compiled + " of " + FUZZED + " fuzzed schemas have documents");
        assertThat(compiled).isBetween(FUZZED / 50, FUZZED * 9 / 10);
    }
}
