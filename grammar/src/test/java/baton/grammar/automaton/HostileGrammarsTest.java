package baton.grammar.automaton;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.OutputFormat;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Grammars that are made to take work or memory without an end. */
@Timeout(300)
class HostileGrammarsTest {
    private static final int UNBOUNDED = Expression.Repeat.UNBOUNDED;

    @Test
    void leftRecursionHasTheTextsOfTheRules() {
        Expression sum = new Expression.Rule("sum");
        Expression number = Expression.repeat(new Expression.Chars(CharSet.range('0', '9')), 1, UNBOUNDED);
        Grammar direct = Grammar.compile(new GrammarSource(
                Map.of("sum", Expression.choice(Expression.sequence(sum, Expression.text("+"), number), number)), sum));
        assertThat(accepts(direct, "1", "12+3", "1+2+3+4")).isTrue();
        assertThat(accepts(direct, "") || accepts(direct, "1+") || accepts(direct, "+1"))
                .isFalse();

        Expression other = new Expression.Rule("other");
        Grammar indirect = Grammar.compile(new GrammarSource(
                Map.of(
                        "sum",
                        Expression.choice(Expression.sequence(other, Expression.text("a")), Expression.text("x")),
                        "other",
                        Expression.choice(
                                sum,
                                Expression.sequence(Expression.optional(Expression.text("z")), sum, sum),
                                Expression.empty())),
                sum));
        assertThat(accepts(indirect, "x", "a", "xa", "xaa", "zxxa", "xxa", "aaa"))
                .isTrue();
        assertThat(accepts(indirect, "") || accepts(indirect, "zx") || accepts(indirect, "ax"))
                .isFalse();
        Grammar itself = Grammar.compile(new GrammarSource(
                Map.of(
                        "sum",
                        Expression.choice(
                                sum, Expression.sequence(sum, sum), Expression.optional(Expression.text("x")))),
                sum));
        assertThat(accepts(itself, "", "x", "xxxxxxxxxx")).isTrue();
    }

    private static boolean accepts(Grammar grammar, String... texts) {
        for (String text : texts) {
            if (!grammar.accepts(text.getBytes(StandardCharsets.UTF_8))) {
                return false;
            }
        }
        return true;
    }

    @Test
    void grammarsWithoutATextAreRefused() {
        Expression rule = new Expression.Rule("r");
        for (Expression body : List.of(
                rule,
                Expression.sequence(Expression.text("a"), rule),
                Expression.nothing(),
                new Expression.And(List.of(Expression.text("a"), Expression.text("b"))),
                new Expression.Not(Expression.any()))) {
            assertThatThrownBy(() -> Grammar.compile(new GrammarSource(Map.of("r", body), rule)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage("grammar: no text satisfies it");
        }
    }

    @Test
    void countersAreNotWrittenOut() {
        Expression counted = new Expression.Chars(CharSet.of("a"));
        for (int i = 0; i < 6; i++) {
            counted = Expression.repeat(counted, 500_000, 1_000_000);
        }
        TokenMatcher matcher = matcher(GrammarSource.of(counted));
        for (int i = 0; i < 1_000; i++) {
            assertThat(allowed(matcher)).containsExactly(1, 3);
            assertThat(matcher.accept(3)).isTrue();
        }
    }

    @Test
    void largeProductsAreRefused() {
        Expression any = Expression.repeat(new Expression.Chars(CharSet.of("ab")), 0, UNBOUNDED);
        Expression exponential = Expression.sequence(
                any, Expression.text("a"), Expression.repeat(new Expression.Chars(CharSet.of("ab")), 40, 40));
        assertThatThrownBy(() -> Grammar.compile(GrammarSource.of(new Expression.Not(exponential))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("too large");
        Expression pairs = Expression.repeat(Expression.text("ab"), 0, 1_000_000);
        Expression counted = Expression.repeat(new Expression.Chars(CharSet.of("ab")), 7, 900_000);
        assertThatThrownBy(() -> Grammar.compile(GrammarSource.of(new Expression.And(List.of(pairs, counted)))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("too large");
    }

    @Test
    void chainsOfRulesAndNestingAreBounded() {
        Map<String, Expression> rules = new HashMap<>();
        for (int i = 0; i < 5_000; i++) {
            rules.put("r" + i, new Expression.Rule("r" + (i + 1)));
        }
        rules.put("r5000", Expression.text("a"));
        assertThatThrownBy(() -> Grammar.compile(new GrammarSource(rules, new Expression.Rule("r0"))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("begin with each other");
        Expression nested = Expression.text("a");
        for (int i = 0; i < 1_000; i++) {
            nested = new Expression.Choice(List.of(nested, Expression.text("b")));
        }
        GrammarSource deep = GrammarSource.of(nested);
        assertThatThrownBy(() -> Grammar.compile(deep))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("nested more than");
    }

    @Test
    void ambiguityAndDepthEndOnlyTheSequence() {
        Expression s = new Expression.Rule("s");
        Expression a = Expression.text("a");
        GrammarSource ambiguous = new GrammarSource(
                Map.of(
                        "s",
                        Expression.choice(
                                Expression.sequence(s, s),
                                Expression.sequence(s, s, s),
                                a,
                                Expression.sequence(a, s, a))),
                s);
        assertEnds(matcher(ambiguous));
        Expression t = new Expression.Rule("t");
        GrammarSource deep = new GrammarSource(
                Map.of("t", Expression.choice(Expression.sequence(a, t, Expression.text("b")), a)), t);
        TokenMatcher matcher = matcher(deep);
        assertThat(assertEnds(matcher)).isTrue();
        assertThat(matcher.mustEnd()).isFalse();
    }

    /** Whether a bound is reached in some thousand tokens. */
    private static boolean assertEnds(TokenMatcher matcher) {
        try {
            for (int i = 0; i < 3_000; i++) {
                allowed(matcher);
                assertThat(matcher.accept(1)).isTrue();
            }
            return false;
        } catch (MatchLimitException e) {
            assertThat(e).hasMessageMatching(".*more than [0-9]+.*");
            return true;
        }
    }

    @Test
    void manyAlternativesAreFewWork() {
        List<Expression> alternatives = new ArrayList<>();
        for (int i = 0; i < 20_000; i++) {
            alternatives.add(Expression.text("a" + i * 7919L + "b"));
        }
        Expression choice = new Expression.Choice(alternatives);
        TokenMatcher matcher = matcher(GrammarSource.of(Expression.repeat(choice, 0, UNBOUNDED)));
        assertThat(allowed(matcher)).containsExactly(0, 1);
        assertThat(matcher.accept(1)).isTrue();
        assertThat(allowed(matcher)).isEmpty();
    }

    @Test
    void manyTextsAreATree() {
        List<String> texts = IntStream.range(0, 20_000)
                .mapToObj(i -> "a" + "b".repeat(i % 7) + i * 7919L)
                .toList();
        Grammar grammar = Grammar.compile(new OutputFormat.Choices(texts).source());
        for (String text : texts) {
            assertThat(accepts(grammar, text)).as(text).isTrue();
        }
        assertThat(accepts(grammar, "a") || accepts(grammar, "a1") || accepts(grammar, texts.getLast() + "0"))
                .isFalse();
        TokenMatcher matcher = matcher(GrammarSource.of(Expression.oneOf(texts)));
        assertThat(allowed(matcher)).containsExactly(1);
        assertThat(matcher.accept(1)).isTrue();
        assertThat(allowed(matcher)).containsExactly(2);

        List<String> nested = IntStream.range(0, 300).mapToObj("ab"::repeat).toList();
        Grammar chain = Grammar.compile(GrammarSource.of(Expression.oneOf(nested)));
        assertThat(accepts(chain, "", "ab", "ab".repeat(299))).isTrue();
        assertThat(accepts(chain, "aba") || accepts(chain, "ab".repeat(300))).isFalse();
    }

    @Test
    void halvesOfSurrogatePairsAreInNoText() {
        Grammar grammar = Grammar.compile(GrammarSource.of(Expression.oneOf(List.of("\uD83D", "x\uD83D", "x"))));
        assertThat(accepts(grammar, "x")).isTrue();
        assertThat(accepts(grammar, "?") || accepts(grammar, "x?") || accepts(grammar, ""))
                .isFalse();
    }

    private static TokenMatcher matcher(GrammarSource source) {
        List<byte[]> tokens = List.of(new byte[0], bytes("a"), bytes("b"), bytes("aaaa"));
        TokenVocabulary vocabulary = TokenVocabulary.of(4, tokens::get, Map.of(), Set.of(0));
        return new TokenGrammar(Grammar.compile(source), vocabulary).matcher();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static int[] allowed(TokenMatcher matcher) {
        long[] mask = new long[1];
        matcher.allow(mask);
        return BitSet.valueOf(mask).stream().toArray();
    }
}
