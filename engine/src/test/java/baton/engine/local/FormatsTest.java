package baton.engine.local;

import static baton.engine.local.HandOverRequests.PREFILL;
import static baton.engine.local.HandOverRequests.ask;
import static baton.grammar.rule.Expression.choice;
import static baton.grammar.rule.Expression.repeat;
import static baton.grammar.rule.Expression.sequence;
import static baton.grammar.rule.Expression.text;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.CpuBinding;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.EngineListener.StepStats;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.RequestOutput.Completion;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.model.ModelConfig;
import baton.engine.model.RandomCheckpoint;
import baton.engine.text.Tokenizer;
import baton.grammar.OutputFormat;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenVocabulary;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Outputs of a format, with the model that knows nothing of it. */
class FormatsTest {
    /** Lists of words and of lists, which may be nested without an end. */
    private static final OutputFormat LISTS = lists(text("]"));

    private static final JsonFields NONE = JsonFields.empty("kv_transfer_params");
    private static final String WORD = "\"[a-zé]{1,12}\"";

    private static OutputFormat lists(Expression end) {
        Expression letter = new Expression.Chars(CharSet.range('a', 'z').union(CharSet.of("é")));
        Expression word = sequence(text("\""), repeat(letter, 1, 12), text("\""));
        Expression value = choice(word, new Expression.Rule("list"));
        Expression list = sequence(text("["), value, repeat(sequence(text(", "), value), 0, 1), end);
        return new OutputFormat.Rules(new GrammarSource(Map.of("list", list), new Expression.Rule("list")));
    }

    private static SamplingParamsBuilder sampling() {
        return SamplingParams.builder().temperature(1.5).seed(5L).maxTokens(400).format(LISTS);
    }

    /** Reads a list at that place; returns the place after it. */
    private static int list(String text, int from) {
        int at = from;
        do {
            at += at == from ? 1 : 2;
            if (text.startsWith("[", at)) {
                at = list(text, at);
            } else {
                int end = text.indexOf('"', at + 1) + 1;
                assertThat(text.substring(at, end)).as(text).matches(WORD);
                at = end;
            }
        } while (text.startsWith(", ", at));
        assertThat(text.substring(at)).as(text).startsWith("]");
        return at + 1;
    }

    private static void assertIsOfTheFormat(Completion completion) {
        assertThat(completion.reason()).as(completion.toString()).isEqualTo(FinishReason.STOP);
        assertThat(list(completion.text(), 0))
                .as(completion.text())
                .isEqualTo(completion.text().length());
    }

    private static List<List<Integer>> tokens(List<Completion> completions) {
        return completions.stream()
                .map(each -> IntStream.of(each.tokens()).boxed().toList())
                .toList();
    }

    @Test
    void everyEndedOutputIsOfTheFormat() {
        try (LLM llm = new LLM(LLMTest.config().build())) {
            RequestOutput output = llm.generate("A list:", sampling().n(24).build());
            assertThat(output.completions()).allSatisfy(FormatsTest::assertIsOfTheFormat);
            assertThat(tokens(output.completions())).as("samples").doesNotHaveDuplicates();
            // The model's own end token ends each of them.
            Set<Integer> ends = Set.of(1, 4);
            assertThat(output.completions()).allMatch(each -> ends.contains(each.tokens()[each.tokens().length - 1]));
            assertIsOfTheFormat(
                    llm.generate("A list:", sampling().temperature(0).build())
                            .completions()
                            .getFirst());
            Completion ignoring = llm.generate(
                            "A list:", sampling().ignoreEos(true).build())
                    .completions()
                    .getFirst();
            assertIsOfTheFormat(ignoring);
            assertThat(ignoring.tokens()).doesNotContain(1, 4);
        }
    }

    @Test
    void anOutputThatCannotGoOnSaysWhy() {
        SamplingParamsBuilder params =
                SamplingParams.builder().temperature(0).format(new OutputFormat.Regex("<[0-9]{9}>"));
        try (LLM llm = new LLM(LLMTest.config().build())) {
            Completion begun = llm.generate("A:", params.maxTokens(1).build())
                    .completions()
                    .getFirst();
            Set<Integer> first = Set.of(begun.tokens()[0]);
            Completion ended = llm.generate(
                            "A:",
                            params.maxTokens(20)
                                    .allowedTokenIds(Optional.of(first))
                                    .build())
                    .completions()
                    .getFirst();
            assertThat(ended.reason()).isEqualTo(FinishReason.LENGTH);
            assertThat(ended.stopReason()).contains("the request's parameters leave no token that the format has next");
            assertThat(ended.text()).isEqualTo(begun.text());
        }
    }

    @Test
    void aCutOutputIsTheBeginningOfALongerOne() {
        try (LLM llm = new LLM(LLMTest.config().build())) {
            String whole = llm.generate("A list:", sampling().build()).text();
            Completion cut = llm.generate("A list:", sampling().maxTokens(5).build())
                    .completions()
                    .getFirst();
            assertThat(cut.reason()).isEqualTo(FinishReason.LENGTH);
            assertThat(whole).startsWith(cut.text());
            Completion stopped = llm.generate(
                            "A list:", sampling().stop(List.of("\"")).build())
                    .completions()
                    .getFirst();
            assertThat(stopped.stopReason()).contains("\"");
            assertThat(whole).startsWith(stopped.text() + "\"");
        }
    }

    @Test
    void preemptedSequencesGoOnWhereTheyWere() throws IOException {
        List<int[]> prompts =
                IntStream.range(0, 8).mapToObj(i -> LLMTest.prompt(i, 20)).toList();
        AtomicInteger preempted = new AtomicInteger();
        EngineListener counting = new EngineListener() {
            @Override
            public void onStep(StepStats stats) {
                preempted.addAndGet(stats.preempted());
            }
        };
        List<List<List<Integer>>> expected = generate(LLMTest.config(), EngineListener.NONE, prompts);
        assertThat(generate(LLMTest.config().maxModelLen(512).numBlocks(33), counting, prompts))
                .isEqualTo(expected);
        assertThat(preempted).as("preemptions").hasPositiveValue();
    }

    @ParameterizedTest(name = "TP={0} PP={1}")
    @CsvSource({"2, 1", "1, 2", "2, 2"})
    void ranksComputeTheSame(int tensor, int stages) throws IOException {
        List<int[]> prompts = List.of(LLMTest.prompt(1, 20), LLMTest.prompt(2, 100));
        assertThat(generate(
                        LLMTest.config().parallel(new ParallelConfig(tensor, stages, CpuBinding.NONE)),
                        EngineListener.NONE,
                        prompts))
                .isEqualTo(generate(LLMTest.config(), EngineListener.NONE, prompts));
    }

    /** Outputs of two samples for each prompt. */
    private static List<List<List<Integer>>> generate(
            EngineConfigBuilder config, EngineListener listener, List<int[]> prompts) throws IOException {
        try (LocalEngine engine = LocalEngine.start(config.build(), listener)) {
            List<GenerationCollector> collectors = new ArrayList<>();
            for (int[] prompt : prompts) {
                GenerationRequest request = new GenerationRequest(
                        "r" + collectors.size(), prompt, sampling().n(2).build());
                GenerationCollector collector = new GenerationCollector(request);
                engine.submit(request, collector);
                collectors.add(collector);
            }
            return collectors.stream()
                    .map(GenerationCollector::join)
                    .peek(output -> output.completions().forEach(FormatsTest::assertIsOfTheFormat))
                    .map(output -> tokens(output.completions()))
                    .toList();
        }
    }

    private static LocalEngine nixl() throws IOException {
        return LocalEngine.start(
                LLMTest.config()
                        .kvTransfer(KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                                .extra("side_channel_port", 0)
                                .extra("transfer_agent", "embedded")
                                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                                .build())
                        .build(),
                EngineListener.NONE);
    }

    /** The decode leg begins the format at the prompt's end, whether the KV cache comes or is lost. */
    @Test
    void outputsAreTheSameThroughAHandOver() throws Exception {
        SamplingParams sampling = sampling().build();
        try (LocalEngine decode = nixl()) {
            LocalEngine prefill = nixl();
            try {
                for (int round = 0; round < 6; round++) {
                    int[] prompt = LLMTest.prompt(round, 50 + round);
                    RequestOutput alone = ask(decode, "alone" + round, prompt, sampling, NONE);
                    assertIsOfTheFormat(alone.completions().getFirst());
                    assertThat(decode.resetPrefixCache()).isTrue();
                    RequestOutput first = ask(
                            prefill,
                            "r" + round,
                            prompt,
                            sampling().maxTokens(1).build(),
                            PREFILL);
                    assertThat(first.tokens()).containsExactly(alone.tokens()[0]);
                    boolean lost = round % 2 == 1;
                    if (lost) {
                        prefill.close();
                        prefill = nixl();
                    }
                    RequestOutput second = ask(
                            decode,
                            "r" + round,
                            prompt,
                            sampling,
                            first.kvTransferParams().orElseThrow());
                    assertThat(second.tokens()).as("round %d", round).isEqualTo(alone.tokens());
                    if (lost) {
                        assertThat(second.cachedTokens()).isZero();
                    } else {
                        assertThat(second.cachedTokens()).isGreaterThanOrEqualTo(prompt.length - 1);
                    }
                }
            } finally {
                prefill.close();
            }
        }
    }

    /** The model's ids may be more than the tokenizer's, and then stand for nothing. */
    @Test
    void idsWithoutATokenAreNotChosen(@TempDir Path directory) throws IOException {
        RandomCheckpoint.write(
                directory,
                new ModelConfig("wide", 2500, 16, 24, 2, 4, 2, 4, 512, 1e-5, 10000, Optional.empty(), true, DType.F32),
                1);
        Files.copy(LLMTest.MODEL.resolve("tokenizer.json"), directory.resolve("tokenizer.json"));
        try (LLM llm = new LLM(LLMTest.config().model(directory).build())) {
            RequestOutput output = llm.generate(
                    "A list:", sampling().stopTokenIds(Set.of(4)).n(8).build());
            assertThat(output.completions()).allSatisfy(FormatsTest::assertIsOfTheFormat);
        }
    }

    @Test
    void aFormatThatCannotBeEnforcedIsRefusedAndOthersAreServed(@TempDir Path directory) throws IOException {
        OutputFormat nothing = new OutputFormat.Rules(GrammarSource.of(Expression.nothing()));
        try (LLM llm = new LLM(LLMTest.config().build())) {
            assertThatThrownBy(() ->
                            llm.generate("A list:", sampling().format(nothing).build()))
                    .isInstanceOf(ConfigException.class);
            assertThatThrownBy(() ->
                            llm.engine().prepare(sampling().format(nothing).build()))
                    .isInstanceOf(ConfigException.class);
            llm.engine().prepare(sampling().build());
            SamplingParams impossible =
                    sampling().allowedTokenIds(Optional.of(Set.of(100))).build();
            assertThatThrownBy(() -> llm.engine().prepare(impossible))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage("allowed_token_ids: leaves no token with which the output's format begins");
            assertThat(llm.generate("A list:", impossible)
                            .completions()
                            .getFirst()
                            .reason())
                    .isEqualTo(FinishReason.LENGTH);
            assertIsOfTheFormat(
                    llm.generate("A list:", sampling().build()).completions().getFirst());
        }
        Files.writeString(
                directory.resolve("tokenizer.json"),
                Files.readString(LLMTest.MODEL.resolve("tokenizer.json"))
                        .replaceFirst(
                                "\"decoder\": *\\{\\s*\"type\": *\"ByteLevel\"",
                                "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false"));
        try (Tokenizer opaque = Tokenizer.load(directory)) {
            assertThatThrownBy(() -> opaque.grammarVocabulary(2048, Set.of(1)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("format: cannot be enforced: ");
        }
    }

    @Test
    void formatsAreCompiledOnceAndTheOldestAreForgotten() {
        try (Tokenizer tokenizer = Tokenizer.load(LLMTest.MODEL)) {
            Supplier<TokenVocabulary> vocabulary = () -> tokenizer.grammarVocabulary(2048, Set.of(1, 4));
            List<OutputFormat> formats = IntStream.range(0, 4)
                    .mapToObj(i -> lists(text("x".repeat(i) + "]")))
                    .toList();
            CompiledFormats all = new CompiledFormats(vocabulary, Long.MAX_VALUE);
            List<TokenGrammar> compiled = formats.stream().map(all::get).toList();
            assertThat(all.get(lists(text("]")))).isSameAs(compiled.getFirst());
            long three =
                    compiled.stream().limit(3).mapToLong(TokenGrammar::bytes).sum();
            CompiledFormats few = new CompiledFormats(vocabulary, three);
            List<TokenGrammar> again = formats.stream().map(few::get).toList();
            assertThat(few.count()).isBetween(1, 3);
            assertThat(few.get(formats.getLast())).isSameAs(again.getLast());
            assertThat(few.get(formats.getFirst())).isNotSameAs(again.getFirst());

            CompiledFormats used = new CompiledFormats(
                    vocabulary, compiled.stream().mapToLong(TokenGrammar::bytes).sum());
            formats.forEach(used::prepare);
            assertThat(used.count()).isEqualTo(formats.size());
            formats.forEach(each -> used.get(each).matcher().allow(new long[2048 / Long.SIZE]));
            TokenGrammar last = used.get(formats.getLast());
            used.prepare(formats.getLast());
            assertThat(used.count()).isBetween(1, formats.size() - 1);
            assertThat(used.get(formats.getLast())).isSameAs(last);

            CompiledFormats none = new CompiledFormats(vocabulary, 1);
            OutputFormat format = formats.getFirst();
            assertThat(none.get(format)).isNotSameAs(none.get(format));
            none.prepare(format);
            assertThat(none.count()).isZero();
            assertThat(none.get(format)).as("of a request that is prepared").isSameAs(none.get(format));

            CompiledFormats longKeys = new CompiledFormats(vocabulary, 3 << 20);
            for (String each : List.of("a", "b", "c")) {
                longKeys.get(new OutputFormat.JsonSchema(
                        "{\"const\":1,\"description\":\"%s\"}".formatted(each.repeat(600_000)), SchemaOptions.DEFAULT));
            }
            assertThat(longKeys.count()).isBetween(1, 2);
        }
    }
}
