package baton.engine;

import java.util.List;

/**
 * Limits the reasoning of a sequence as vLLM's {@code thinking_token_budget}: tokens are counted from the last mark of its beginning in prompt and
 * output on, and when they are as many as the budget, the tokens of its end are chosen one after the other.
 *
 * @param tokens most tokens of reasoning, at least 0
 * @param begin tokens of the mark before the reasoning
 * @param ends tokens of each mark after it; the first one is the end that is chosen
 */
public record ThinkingBudget(int tokens, List<Integer> begin, List<List<Integer>> ends) {
    public ThinkingBudget {
        begin = List.copyOf(begin);
        ends = ends.stream().map(List::copyOf).toList();
    }
}
