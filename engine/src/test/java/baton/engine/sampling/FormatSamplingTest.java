package baton.engine.sampling;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.kernel.ParallelFor;
import baton.engine.sampling.Sampler.Choice;
import baton.engine.sampling.Sampler.LogitRow;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenVocabulary;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.Expression.Repeat;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Sampling of sequences with a format of the output. */
class FormatSamplingTest {
    private static final Choice CONTRADICTION =
            new Choice.NoneLeft(Optional.of("the request's parameters leave no token that the format has next"));

    private static final int EOS = 0;
    private static final int SPECIAL = 1;
    /** A token's text is the character of its id. Others than letters have none. */
    private static final int VOCABULARY = 150;

    private static final TokenVocabulary TOKENS = TokenVocabulary.of(
            VOCABULARY,
            id -> id >= 'a' && id <= 'z' ? new byte[] {(byte) id} : new byte[0],
            Map.of("<end>", EOS, "<special>", SPECIAL),
            Set.of(EOS));

    private final Randomness randomness = new Randomness();

    private static TokenGrammar format(Expression expression) {
        return new TokenGrammar(Grammar.compile(GrammarSource.of(expression)), TOKENS);
    }

    private static TokenGrammar texts(String... texts) {
        return format(
                new Expression.Choice(Arrays.stream(texts).map(Expression::text).toList()));
    }

    /** Logits of 0 but for these tokens, the first of which has the greatest, and so on. */
    private static FakeLogits prefer(int... ids) {
        float[] logits = new float[VOCABULARY];
        for (int i = 0; i < ids.length; i++) {
            logits[ids[i]] = 10 + ids.length - i;
        }
        return FakeLogits.of(logits);
    }

    private static SamplingParamsBuilder greedy() {
        return SamplingParams.builder().temperature(0).maxTokens(OptionalInt.empty());
    }

    private FakeLogits random() {
        float[] logits = new float[VOCABULARY];
        for (int id = 0; id < VOCABULARY; id++) {
            logits[id] = 5 * (float) randomness.random.nextGaussian();
        }
        return FakeLogits.of(logits);
    }

    /** How an output ended. */
    private record Output(String text, Choice end) {}

    private static Choice next(Sampler sampler, SequenceSampler sequence, FakeLogits logits) {
        return sampler.choose(logits, List.of(new LogitRow(sequence, 0)), ParallelFor.alone())
                .getFirst();
    }

    /** Chooses tokens until the model's end token or a stop token. */
    private static Output generate(SamplingParams params, TokenGrammar format, FakeLogits... steps) {
        Sampler sampler = new Sampler(VOCABULARY, Set.of(EOS));
        SequenceSampler sequence = sampler.sequence(params, Optional.of(format), new int[0], 1);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 100; i++) {
            Choice choice = next(sampler, sequence, steps[i % steps.length]);
            if (!(choice instanceof Choice.Chosen(Sampled token))
                    || token.id() == EOS
                    || params.stopTokenIds().contains(token.id())) {
                return new Output(text.toString(), choice);
            }
            text.append((char) token.id());
        }
        throw new AssertionError("does not end: " + text);
    }

    private static Choice chosen(int id) {
        return new Choice.Chosen(new Sampled(id, Optional.empty()));
    }

    @Test
    void randomOutputsAreOfTheFormat() {
        TokenGrammar format = format(Expression.repeat(new Expression.Chars(CharSet.of("abc")), 2, 4));
        SamplingParamsBuilder params = SamplingParams.builder()
                .temperature(2)
                .maxTokens(OptionalInt.empty())
                .presencePenalty(2)
                .repetitionPenalty(0.5)
                .logitBias(Map.of((int) 'z', 100.0, SPECIAL, 100.0));
        for (int i = 0; i < 200; i++) {
            FakeLogits[] steps = new FakeLogits[5];
            Arrays.setAll(steps, _ -> random());
            for (SamplingParams each : List.of(
                    params.build(),
                    params.topP(0.9).build(),
                    params.temperature(0).build())) {
                Output output = generate(each, format, steps);
                assertThat(output.text()).as(randomness.toString()).matches("[abc]{2,4}");
                assertThat(output.end()).as(randomness.toString()).isEqualTo(chosen(EOS));
            }
        }
    }

    @Test
    void theEndComesWhereTheFormatIsComplete() {
        assertThat(generate(greedy().build(), texts("abc"), prefer(EOS, 'z', 'b')))
                .isEqualTo(new Output("abc", chosen(EOS)));
        assertThat(generate(greedy().build(), texts("a", "ab", "abcd"), prefer('z', 'd', 'c', 'b', EOS)))
                .isEqualTo(new Output("abcd", chosen(EOS)));
        assertThat(generate(greedy().build(), texts("a", "ab", "abcd"), prefer('b', EOS, 'c', 'd')))
                .isEqualTo(new Output("ab", chosen(EOS)));
    }

    @Test
    void theGreatestLogitOfTheFormatIsTaken() {
        TokenGrammar letter = texts("b", "d", "f");
        assertThat(generate(greedy().build(), letter, prefer(SPECIAL, 'a', 'f', 'd'))
                        .text())
                .isEqualTo("f");
        assertThat(generate(greedy().build(), letter, prefer()).text())
                .as("the smallest id among equals")
                .isEqualTo("b");
        float[] barred = new float[VOCABULARY];
        barred['b'] = Float.NEGATIVE_INFINITY;
        assertThat(generate(greedy().build(), letter, FakeLogits.of(barred)).text())
                .isEqualTo("d");
    }

    @Test
    void specialTokensOfTheFormatAreTokensNotCharacters() {
        TokenGrammar format = format(Expression.sequence(
                Expression.text("a"), new Expression.SpecialToken("<special>"), Expression.text("b")));
        assertThat(generate(greedy().build(), format, prefer('b', 'a')))
                .isEqualTo(new Output("a" + (char) SPECIAL + "b", chosen(EOS)));
    }

    @Test
    void noEndBeforeMinTokens() {
        TokenGrammar format = texts("a", "ab", "abc");
        assertThat(generate(greedy().minTokens(2).build(), format, prefer(EOS)))
                .isEqualTo(new Output("ab", chosen(EOS)));
        assertThat(generate(greedy().minTokens(5).build(), format, prefer(EOS)))
                .as("no longer text")
                .isEqualTo(new Output("abc", new Choice.NoneLeft(Optional.empty())));
        assertThat(generate(greedy().minTokens(5).temperature(1).build(), format, prefer(EOS)))
                .isEqualTo(new Output("abc", new Choice.NoneLeft(Optional.empty())));
    }

    @Test
    void withoutEndTokensTheOutputEndsAfterTheLongestText() {
        assertThat(generate(greedy().ignoreEos(true).build(), texts("a", "ab"), prefer(EOS)))
                .isEqualTo(new Output("ab", new Choice.NoneLeft(Optional.empty())));
        assertThat(generate(greedy().ignoreEos(true).stopTokenIds(Set.of(EOS)).build(), texts("a", "ab"), prefer(EOS)))
                .isEqualTo(new Output("a", chosen(EOS)));
    }

    @Test
    void stopTokensEndTheOutputWhereTheFormatIsComplete() {
        TokenGrammar format = texts("a", "ab", "abc");
        int stop = SPECIAL;
        assertThat(generate(greedy().stopTokenIds(Set.of(stop)).build(), format, prefer(stop)))
                .isEqualTo(new Output("a", chosen(stop)));
        assertThat(generate(greedy().stopTokenIds(Set.of((int) 'c')).build(), format, prefer('c')))
                .isEqualTo(new Output("a", chosen('c')));
    }

    @Test
    void aStopTokenWithinTheFormatEndsItAsItsLast() {
        Expression end = new Expression.SpecialToken("<end>");
        TokenGrammar twice = format(Expression.sequence(
                Expression.text("a"), Expression.optional(Expression.sequence(end, Expression.text("b")))));
        TokenGrammar needed = format(Expression.sequence(Expression.text("a"), end));
        assertThat(generate(greedy().build(), twice, prefer('b'))).isEqualTo(new Output("a", chosen(EOS)));
        assertThat(generate(greedy().build(), needed, prefer('b'))).isEqualTo(new Output("a", chosen(EOS)));
        SamplingParamsBuilder stop = greedy().stopTokenIds(Set.of((int) 'z'));
        assertThat(generate(stop.build(), texts("abz"), prefer('z')).end())
                .as("the stop token's text would be missing")
                .isEqualTo(CONTRADICTION);
        assertThat(generate(stop.includeStopInOutput(true).build(), texts("abz"), prefer('z')))
                .isEqualTo(new Output("ab", chosen('z')));
    }

    @Test
    void aFormatThatCannotBeginWithinItsBoundsIsRefused() {
        Expression a = Expression.text("a");
        Expression nested =
                Expression.choice(Expression.sequence(a, new Expression.Rule("r"), Expression.text("b")), a);
        TokenVocabulary tokens = TokenVocabulary.of(
                2, id -> id == EOS ? new byte[0] : "a".repeat(2_000).getBytes(UTF_8), Map.of(), Set.of(EOS));
        TokenGrammar format = new TokenGrammar(
                Grammar.compile(new GrammarSource(Map.of("r", nested), new Expression.Rule("r"))), tokens);
        SamplingParams params = greedy().badWords(List.of(List.of(EOS))).build();
        assertThatThrownBy(() -> Sampler.checkBeginning(params, format, 2, Set.of(EOS)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("format: takes too much work");
        Sampler sampler = new Sampler(2, Set.of(EOS));
        FakeLogits logits = FakeLogits.of(new float[2]);
        Choice end = next(sampler, sampler.sequence(greedy().build(), Optional.of(format), new int[0], 1), logits);
        assertThat(((Choice.NoneLeft) end).incomplete().orElseThrow())
                .startsWith("the format takes too much work: the output is nested more than");
    }

    @Test
    void tokensThatTheRequestForbidsEndTheOutput() {
        Set<Integer> allowed = Set.of((int) 'a', EOS);
        assertThat(generate(greedy().allowedTokenIds(Optional.of(allowed)).build(), texts("a", "ab"), prefer('b')))
                .isEqualTo(new Output("a", chosen(EOS)));
        assertThat(generate(
                        greedy().allowedTokenIds(Optional.of(Set.of((int) 'a'))).build(), texts("a", "ab"), prefer()))
                .as("complete, without an end token")
                .isEqualTo(new Output("a", new Choice.NoneLeft(Optional.empty())));
        for (SamplingParamsBuilder each : List.of(
                greedy().allowedTokenIds(Optional.of(allowed)),
                greedy().badWords(List.of(List.of((int) 'a', (int) 'b'))),
                SamplingParams.builder().badWords(List.of(List.of((int) 'b'))))) {
            assertThat(generate(each.build(), texts("abc"), prefer()).end()).isEqualTo(CONTRADICTION);
        }
        assertThat(generate(greedy().badWords(List.of(List.of((int) 'a'))).build(), texts("abc", "bc"), prefer('a')))
                .isEqualTo(new Output("bc", chosen(EOS)));
    }

    @Test
    void logprobsAreOfTheModelsLogits() {
        FakeLogits logits = prefer('z', 'b', 'a');
        Sampler sampler = new Sampler(VOCABULARY, Set.of(EOS));
        SamplingParams params = greedy().logprobs(2).build();
        Choice free = next(sampler, sampler.sequence(params, Optional.empty(), new int[0], 1), logits);
        for (TokenGrammar format : List.of(texts("a"), texts("a", "c"))) {
            Choice guided = next(sampler, sampler.sequence(params, Optional.of(format), new int[0], 1), logits);
            Sampled token = ((Choice.Chosen) guided).token();
            assertThat(token.id()).isEqualTo('a');
            assertThat(token.logprobs().orElseThrow().top())
                    .isEqualTo(((Choice.Chosen) free)
                            .token()
                            .logprobs()
                            .orElseThrow()
                            .top());
        }
    }

    @Test
    void aRowThatIsNoNumbersFailsAlsoWhereOneTokenIsPossible() {
        float[] logits = new float[VOCABULARY];
        logits['z'] = Float.NaN;
        for (TokenGrammar format : List.of(texts("a"), texts("a", "b"))) {
            for (double temperature : new double[] {0, 1}) {
                Choice end = generate(greedy().temperature(temperature).build(), format, FakeLogits.of(logits))
                        .end();
                assertThatThrownBy(() -> {
                            throw ((Choice.Failed) end).cause();
                        })
                        .hasMessageContaining("NaN");
            }
        }
    }

    @Test
    void theSeedDecidesWithinTheFormat() {
        TokenGrammar format =
                format(Expression.repeat(new Expression.Chars(CharSet.range('a', 'z')), 20, Repeat.UNBOUNDED));
        SamplingParams params = SamplingParams.builder()
                .maxTokens(OptionalInt.empty())
                .ignoreEos(true)
                .build();
        Sampler sampler = new Sampler(VOCABULARY, Set.of(EOS));
        SequenceSampler one = sampler.sequence(params, Optional.of(format), new int[0], 7);
        SequenceSampler same = sampler.sequence(params, Optional.of(format), new int[0], 7);
        SequenceSampler other = sampler.sequence(params, Optional.of(format), new int[0], 8);
        int different = 0;
        for (int i = 0; i < 40; i++) {
            FakeLogits logits = random();
            Choice first = next(sampler, one, logits);
            assertThat(next(sampler, same, logits)).as(randomness.toString()).isEqualTo(first);
            different += next(sampler, other, logits).equals(first) ? 0 : 1;
        }
        assertThat(different).as(randomness.toString()).isPositive();
    }
}
