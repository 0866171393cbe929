package baton.engine.sampling;

import baton.engine.SamplingParams;
import baton.engine.model.Logits;
import baton.grammar.automaton.TokenMatcher;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HashSet;
import java.util.OptionalInt;
import java.util.Set;

/**
 * The tokens that the format of one sequence's output allows next. A token that ends the output is allowed where the format is
 * complete, and only there.
 */
final class FormatGuide {
    private final TokenMatcher matcher;
    private final int minTokens;
    private final long[] allowed;
    /** Tokens that end the output. */
    private final Set<Integer> ends;
    /** The end tokens that the format may have as its last token. The text of others is not in the output. */
    private final Set<Integer> last;
    /** The model's end tokens, if these are to end nothing. */
    private final Set<Integer> ignored;

    private boolean complete;

    FormatGuide(TokenMatcher matcher, SamplingParams params, Set<Integer> eosIds, int vocabularySize) {
        this.matcher = matcher;
        this.minTokens = params.minTokens();
        this.allowed = new long[(vocabularySize + Long.SIZE - 1) / Long.SIZE];
        this.ends = new HashSet<>(params.stopTokenIds());
        this.ignored = new HashSet<>();
        (params.ignoreEos() ? ignored : ends).addAll(eosIds);
        ignored.removeAll(ends);
        this.last = new HashSet<>(ends);
        if (!params.includeStopInOutput()) {
            last.retainAll(eosIds);
        }
    }

    /**
     * Finds the tokens that may come next.
     *
     * @param position of the token in the output
     */
    void find(int position) {
        matcher.allow(allowed);
        complete = matcher.mayEnd();
        for (int id : ends) {
            set(id, position >= minTokens && (complete || isLast(id)));
        }
        if (complete) {
            ignored.forEach(id -> set(id, false));
        }
    }

    /** Whether the format has the token itself here, and is complete with it. */
    private boolean isLast(int id) {
        if (!last.contains(id) || id / Long.SIZE >= allowed.length || !allows(id)) {
            return false;
        }
        TokenMatcher after = matcher.copy();
        return after.accept(id) && after.mayEnd();
    }

    private void set(int id, boolean value) {
        int word = id / Long.SIZE;
        if (word < allowed.length) {
            allowed[word] = value ? allowed[word] | 1L << id : allowed[word] & ~(1L << id);
        }
    }

    /** Whether the output may end before the next token. */
    boolean isComplete() {
        return complete;
    }

    boolean allows(int id) {
        return (allowed[id / Long.SIZE] & 1L << id) != 0;
    }

    /** The token that must be next, if only one may be. */
    OptionalInt only() {
        int found = -1;
        for (int word = 0; word < allowed.length; word++) {
            long bits = allowed[word];
            if (bits != 0) {
                if (found >= 0 || (bits & (bits - 1)) != 0) {
                    return OptionalInt.empty();
                }
                found = word * Long.SIZE + Long.numberOfTrailingZeros(bits);
            }
        }
        return found < 0 ? OptionalInt.empty() : OptionalInt.of(found);
    }

    /** The allowed token of the greatest logit, the smallest id among equals. Empty if no allowed logit is above negative infinity. */
    OptionalInt argmax(Logits logits, int row) {
        int greatest = logits.argmax(row);
        if (allows(greatest)) {
            return OptionalInt.of(greatest);
        }
        MemorySegment values = logits.row(row);
        int best = -1;
        float max = Float.NEGATIVE_INFINITY;
        for (int word = 0; word < allowed.length; word++) {
            for (long bits = allowed[word]; bits != 0; bits &= bits - 1) {
                int id = word * Long.SIZE + Long.numberOfTrailingZeros(bits);
                float value = values.getAtIndex(ValueLayout.JAVA_FLOAT, id);
                if (value > max) {
                    max = value;
                    best = id;
                }
            }
        }
        return best < 0 ? OptionalInt.empty() : OptionalInt.of(best);
    }

    /** Loads the logits of the allowed tokens. */
    void load(MemorySegment row, Distribution distribution) {
        distribution.load(row, allowed);
    }

    /** The token was chosen. */
    void advance(int id) {
        if (!ends.contains(id) && !matcher.accept(id)) {
            throw new IllegalStateException("the format has no token " + id + " here");
        }
    }
}
