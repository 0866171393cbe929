package baton.engine.sampling;

import baton.engine.ThinkingBudget;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import java.util.stream.Stream;

/** Ends the reasoning of one sequence when its budget is used up. */
final class ThinkingGuide {
    private final ThinkingBudget budget;
    private final int longestMark;
    /** The last tokens, as many as the longest mark has. */
    private final List<Integer> tail = new ArrayList<>();
    /** Tokens since the mark of the beginning; -1 outside of reasoning. */
    private int thought = -1;

    ThinkingGuide(ThinkingBudget budget, int[] prompt) {
        this.budget = budget;
        longestMark = Stream.concat(Stream.of(budget.begin()), budget.ends().stream())
                .mapToInt(List::size)
                .max()
                .orElseThrow();
        for (int id : prompt) {
            advance(id);
        }
    }

    /** The token was chosen. */
    void advance(int id) {
        if (tail.size() == longestMark) {
            tail.removeFirst();
        }
        tail.addLast(id);
        if (endsWith(budget.begin())) {
            thought = 0;
        } else if (budget.ends().stream().anyMatch(this::endsWith)) {
            thought = -1;
        } else if (thought >= 0) {
            thought++;
        }
    }

    private boolean endsWith(List<Integer> tokens) {
        return tokens.size() <= tail.size()
                && tail.subList(tail.size() - tokens.size(), tail.size()).equals(tokens);
    }

    /** The next token of the end, if the budget is used up. */
    OptionalInt forced() {
        if (thought < budget.tokens()) {
            return OptionalInt.empty();
        }
        List<Integer> end = budget.ends().getFirst();
        int begun = end.size() - 1;
        while (!endsWith(end.subList(0, begun))) {
            begun--;
        }
        return OptionalInt.of(end.get(begun));
    }
}
