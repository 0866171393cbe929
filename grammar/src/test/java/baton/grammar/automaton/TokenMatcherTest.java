package baton.grammar.automaton;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** Masks beside a recognizer that goes by the definition of each expression, with random grammars and vocabularies. */
class TokenMatcherTest {
    private static final int GRAMMARS = Integer.getInteger("tests.grammars", 16);
    private static final int END = 0;
    private static final byte[] BYTES = "ab\u00e8\u00e9".getBytes(StandardCharsets.UTF_8);

    private final long seed = Long.getLong("tests.seed", System.nanoTime());

    @Test
    void masksHaveExactlyTheTokensWithWhichATextOfTheGrammarGoesOn() {
        int nonempty = 0;
        for (int i = 0; i < GRAMMARS; i++) {
            Random random = new Random(seed + i);
            GrammarSource source = new RandomGrammar(random).source();
            ReferenceRecognizer reference = new ReferenceRecognizer(source);
            TokenVocabulary vocabulary = vocabulary(random);
            String which = "-Dtests.seed=" + (seed + i) + " " + source;
            Grammar grammar;
            try {
                grammar = Grammar.compile(source);
            } catch (ConfigException e) {
                assertThat(e).as(which).hasMessageMatching("grammar: no text satisfies it|.*within members.*");
                assertThat(e.toString().contains("no text") && reference.begins(new byte[0]))
                        .as(which)
                        .isFalse();
                continue;
            }
            nonempty++;
            TokenGrammar tokens = new TokenGrammar(grammar, vocabulary);
            for (int text = 0; text < 2; text++) {
                checkOneText(reference, grammar, tokens, vocabulary, random, which);
            }
        }
        assertThat(nonempty).isGreaterThan(GRAMMARS / 5);
    }

    private static void checkOneText(
            ReferenceRecognizer reference,
            Grammar grammar,
            TokenGrammar tokens,
            TokenVocabulary vocabulary,
            Random random,
            String which) {
        TokenMatcher matcher = tokens.matcher();
        byte[] text = {};
        while (text.length < 6) {
            String at = which + " after " + HexFormat.of().formatHex(text);
            long[] mask = new long[1];
            matcher.allow(mask);
            BitSet expected = new BitSet();
            for (int id = 0; id < vocabulary.size(); id++) {
                if (vocabulary.bytes(id).length > 0 && reference.begins(joined(text, vocabulary.bytes(id)))) {
                    expected.set(id);
                }
            }
            boolean ends = reference.accepts(text);
            expected.set(END, ends);
            assertThat(BitSet.valueOf(mask)).as(at).isEqualTo(expected);
            assertThat(matcher.mayEnd()).as(at).isEqualTo(ends);
            assertThat(grammar.accepts(text)).as(at).isEqualTo(ends);
            for (int id = 0; id < vocabulary.size(); id++) {
                assertThat(matcher.copy().accept(id)).as(at + " token " + id).isEqualTo(expected.get(id));
            }
            expected.clear(END);
            if (expected.isEmpty()) {
                return;
            }
            assertThat(matcher.mustEnd()).as(at).isFalse();
            int[] choices = expected.stream().toArray();
            int chosen = choices[random.nextInt(choices.length)];
            assertThat(matcher.accept(chosen)).as(at).isTrue();
            text = joined(text, vocabulary.bytes(chosen));
        }
    }

    private static byte[] joined(byte[] one, byte[] other) {
        ByteArrayOutputStream both = new ByteArrayOutputStream();
        both.writeBytes(one);
        both.writeBytes(other);
        return both.toByteArray();
    }

    /** An end, all bytes, a token without bytes, and some tokens of several bytes, of which some are equal. */
    private static TokenVocabulary vocabulary(Random random) {
        List<byte[]> tokens = new ArrayList<>();
        tokens.add("<end>".getBytes(StandardCharsets.UTF_8));
        for (byte value : Set.of((byte) 'a', (byte) 'b', (byte) 0xC3, (byte) 0xA8, (byte) 0xA9)) {
            tokens.add(new byte[] {value});
        }
        tokens.add(new byte[0]);
        for (int i = 0; i < 12; i++) {
            byte[] token = new byte[2 + random.nextInt(3)];
            for (int j = 0; j < token.length; j++) {
                token[j] = BYTES[random.nextInt(BYTES.length)];
            }
            tokens.add(token);
        }
        return TokenVocabulary.of(tokens.size(), tokens::get, Map.of("<end>", END), Set.of(END));
    }

    /** Small expressions of a few characters, with rules that refer to each other. */
    private static final class RandomGrammar {
        private static final List<String> RULES = List.of("r0", "r1", "r2");

        private final Random random;

        RandomGrammar(Random random) {
            this.random = random;
        }

        GrammarSource source() {
            Map<String, Expression> rules = new HashMap<>();
            RULES.forEach(name -> rules.put(name, expression(2, true)));
            return new GrammarSource(rules, expression(3, true));
        }

        private Expression expression(int depth, boolean recursive) {
            int kind = random.nextInt(depth == 0 ? 3 : recursive ? 10 : 7);
            return switch (kind) {
                case 0, 1 -> text();
                case 2 -> new Expression.Chars(set());
                case 3, 4 -> new Expression.Sequence(several(depth, recursive));
                case 5 -> new Expression.Choice(several(depth, recursive));
                case 6 -> {
                    int least = random.nextInt(3);
                    int most = random.nextBoolean() ? Expression.Repeat.UNBOUNDED : least + random.nextInt(3);
                    yield Expression.repeat(expression(depth - 1, recursive), least, most);
                }
                case 7 -> new Expression.Rule(RULES.get(random.nextInt(RULES.size())));
                case 8 ->
                    random.nextBoolean()
                            ? new Expression.Not(expression(1, false))
                            : new Expression.And(List.of(expression(1, false), expression(1, false)));
                default -> random.nextInt(4) == 0 ? automaton() : members(depth);
            };
        }

        private List<Expression> several(int depth, boolean recursive) {
            List<Expression> parts = new ArrayList<>();
            for (int i = random.nextInt(1, 4); i > 0; i--) {
                parts.add(expression(depth - 1, recursive));
            }
            return parts;
        }

        private Expression text() {
            StringBuilder text = new StringBuilder();
            for (int i = random.nextInt(3); i > 0; i--) {
                text.append("ab\u00e8\u00e9".charAt(random.nextInt(4)));
            }
            return Expression.text(text.toString());
        }

        private CharSet set() {
            CharSet set = CharSet.NONE;
            for (int i = random.nextInt(4); i > 0; i--) {
                set = set.union(CharSet.of("ab\u00e8\u00e9".charAt(random.nextInt(4))));
            }
            return set;
        }

        private Expression automaton() {
            List<Expression.State> states = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                List<Expression.Step> steps = new ArrayList<>();
                for (String character : List.of("a", "b", "\u00e8")) {
                    if (random.nextBoolean()) {
                        steps.add(new Expression.Step(Expression.text(character), random.nextInt(3)));
                    }
                }
                states.add(new Expression.State(random.nextInt(3) == 0, steps));
            }
            int least = random.nextInt(3);
            int most = random.nextBoolean() ? Expression.Repeat.UNBOUNDED : least + random.nextInt(3);
            return new Expression.Automaton(states, least, most);
        }

        /** Members begin with different characters, so that no text is of two. */
        private Expression members(int depth) {
            List<Expression.Member> members = new ArrayList<>();
            for (String first : List.of("a", "b")) {
                members.add(new Expression.Member(
                        Expression.sequence(Expression.text(first), expression(depth - 1, true)),
                        random.nextBoolean()));
            }
            int least = random.nextInt(3);
            int most = random.nextBoolean() ? Expression.Repeat.UNBOUNDED : least + random.nextInt(3);
            Expression others = random.nextBoolean() ? Expression.nothing() : Expression.text("\u00e8");
            Expression separator = Expression.text(random.nextBoolean() ? "" : "\u00e9");
            return new Expression.Members(members, random.nextBoolean(), separator, others, least, most);
        }
    }

    @Test
    void masksOfCountedStringsHaveTheTokensThatAreAccepted() {
        Random random = new Random(seed);
        Expression escape = Expression.sequence(Expression.text("\\"), new Expression.Chars(CharSet.of("\"\\n")));
        Expression character = Expression.choice(new Expression.Chars(CharSet.ALL.minus(CharSet.of("\"\\\n"))), escape);
        List<Expression> strings = new ArrayList<>();
        for (int[] bounds : new int[][] {{0, 3}, {4, 30}, {20, 25}, {2, Expression.Repeat.UNBOUNDED}}) {
            strings.add(Expression.sequence(
                    Expression.text("\""), Expression.repeat(character, bounds[0], bounds[1]), Expression.text("\"")));
        }
        Expression pair = Expression.sequence(new Expression.Choice(strings), Expression.text(": "), strings.get(2));
        GrammarSource source = GrammarSource.of(
                Expression.sequence(Expression.text("{"), Expression.repeat(pair, 1, 4), Expression.text("}")));
        List<byte[]> tokens = new ArrayList<>(List.of(new byte[0]));
        byte[] alphabet = "{}\": \\nabcdefgh\u00e8\u20ac\n".getBytes(StandardCharsets.UTF_8);
        for (byte value : alphabet) {
            tokens.add(new byte[] {value});
        }
        for (int i = 0; i < 1_500; i++) {
            byte[] token = new byte[random.nextInt(2, 9)];
            for (int j = 0; j < token.length; j++) {
                token[j] = alphabet[random.nextInt(alphabet.length)];
            }
            tokens.add(token);
        }
        TokenVocabulary vocabulary = TokenVocabulary.of(tokens.size(), tokens::get, Map.of(), Set.of(0));
        TokenGrammar grammar = new TokenGrammar(Grammar.compile(source), vocabulary);
        for (int text = 0; text < 10; text++) {
            TokenMatcher matcher = grammar.matcher();
            for (int length = 0; length < 60 && !matcher.mustEnd(); length++) {
                long[] mask = new long[vocabulary.words()];
                matcher.allow(mask);
                BitSet expected = new BitSet();
                for (int id = 0; id < vocabulary.size(); id++) {
                    expected.set(id, matcher.copy().accept(id));
                }
                assertThat(BitSet.valueOf(mask)).as("-Dtests.seed=" + seed).isEqualTo(expected);
                int chosen = expected.nextSetBit(random.nextInt(vocabulary.size()));
                assertThat(matcher.accept(chosen < 0 ? expected.nextSetBit(0) : chosen))
                        .isTrue();
            }
        }
    }

    @Test
    void specialTokensAreNotTheirCharacters() {
        List<byte[]> tokens = List.of("<".getBytes(StandardCharsets.UTF_8), "<end>".getBytes(StandardCharsets.UTF_8));
        TokenVocabulary vocabulary = TokenVocabulary.of(2, tokens::get, Map.of("<end>", 1), Set.of());
        TokenGrammar special =
                new TokenGrammar(Grammar.compile(GrammarSource.of(new Expression.SpecialToken("<end>"))), vocabulary);
        assertThat(allowed(special.matcher())).containsExactly(1);
        TokenGrammar characters =
                new TokenGrammar(Grammar.compile(GrammarSource.of(Expression.text("<end>"))), vocabulary);
        assertThat(allowed(characters.matcher())).containsExactly(0);

        TokenMatcher matcher = special.matcher();
        assertThat(matcher.accept(0)).isFalse();
        assertThat(matcher.accept(1)).isTrue();
        assertThat(matcher.mustEnd()).isTrue();
        assertThatThrownBy(() -> new TokenGrammar(
                        Grammar.compile(GrammarSource.of(new Expression.SpecialToken("<other>"))), vocabulary))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("'<other>'");
    }

    private static int[] allowed(TokenMatcher matcher) {
        long[] mask = {-1, -1};
        matcher.allow(mask);
        return BitSet.valueOf(mask).stream().toArray();
    }
}
