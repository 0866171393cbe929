package baton.engine.core;

import static baton.grammar.rule.Expression.choice;
import static baton.grammar.rule.Expression.repeat;
import static baton.grammar.rule.Expression.sequence;

import baton.grammar.automaton.Grammar;
import baton.grammar.automaton.TokenGrammar;
import baton.grammar.automaton.TokenMatcher;
import baton.grammar.automaton.TokenVocabulary;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.Expression.Repeat;
import baton.grammar.rule.GrammarSource;
import java.util.Map;
import java.util.Set;

/** Brackets of two kinds over the oracle's vocabulary: the tokens that may come next depend on all tokens before. */
public final class OracleFormat {
    private static final int KIND = (OracleRunner.VOCABULARY - 1) / 4;

    private OracleFormat() {}

    /** A token's text is the character of its id; 0 ends a text. */
    public static TokenGrammar brackets() {
        Expression brackets = new Expression.Rule("brackets");
        Expression one = sequence(token(0), brackets, token(1));
        Expression other = sequence(token(2), brackets, token(3));
        GrammarSource source =
                new GrammarSource(Map.of("brackets", repeat(choice(one, other), 0, Repeat.UNBOUNDED)), brackets);
        TokenVocabulary vocabulary = TokenVocabulary.of(
                OracleRunner.VOCABULARY,
                id -> id == 0 ? new byte[0] : new byte[] {(byte) id},
                Map.of(),
                Set.of(CoreHarness.EOS));
        return new TokenGrammar(Grammar.compile(source), vocabulary);
    }

    private static Expression token(int kind) {
        return new Expression.Chars(CharSet.range(1 + kind * KIND, (kind + 1) * KIND));
    }

    /** The token that is chosen where the oracle says {@code best}, if no end token may be; the matcher goes on by it. */
    public static int next(TokenMatcher matcher, int best) {
        long[] mask = new long[(OracleRunner.VOCABULARY + Long.SIZE - 1) / Long.SIZE];
        matcher.allow(mask);
        mask[0] &= ~1L;
        int next = best;
        // The oracle's other logits are equal.
        for (int id = 0; (mask[next / Long.SIZE] & 1L << next) == 0; id++) {
            next = id;
        }
        if (!matcher.accept(next)) {
            throw new AssertionError("the format has no token " + next);
        }
        return next;
    }
}
