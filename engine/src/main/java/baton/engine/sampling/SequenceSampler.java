package baton.engine.sampling;

import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.model.Logits;
import baton.grammar.automaton.TokenGrammar;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;

/**
 * Chooses the tokens of one sequence and remembers them for the penalties. Outlives preemption; used by one thread at a time.
 *
 * <p>The order is that of vLLM V1 ({@code vllm/v1/sample/sampler.py}, with its default {@code logprobs_mode} of
 * {@code raw_logprobs}):
 *
 * <ol>
 *   <li>the output's format, {@code allowed_token_ids} and {@code bad_words}: tokens that may not be chosen now become negative infinity;
 *   <li>{@code min_tokens} (no end token or stop token before) and {@code logit_bias};
 *   <li>penalties: repetition over prompt and output, dividing positive logits and multiplying others; then, over the output alone,
 *       frequency times count and presence, both subtracted;
 *   <li>a used up budget of reasoning: the next token of its end, if the format has it;
 *   <li>temperature 0: the greatest logit. Else
 *   <li>temperature, {@code min_p}, {@code top_k}, {@code top_p}, each on the tokens that the one before left, and a draw.
 * </ol>
 *
 * <p>Log probabilities are of the model's logits, before all of these. The smaller id comes first among equals everywhere; top-k
 * keeps all tokens that equal the k-th.
 *
 * <p>The draw for output position k takes its random number from the seed and k alone, so neither the batch nor other requests nor
 * preemption change a seed's results.
 */
public final class SequenceSampler {
    private final SamplingParams params;
    private final int vocabularySize;
    private final long stream;
    private final Set<Integer> endIds;
    private final boolean repetition;
    private final boolean counted;
    /** Tokens of prompt and output, for the repetition penalty. */
    private final BitSet seen = new BitSet();
    /** How often each token is in the output, for the other two. */
    private final Map<Integer, Integer> outputCounts = new HashMap<>();

    private final Optional<FormatGuide> guide;
    private final Optional<ThinkingGuide> thinking;
    private final BitSet forbidden = new BitSet();
    /** The end of the output, as long as bad words look back. */
    private int[] tail = new int[0];

    private final int lookBack;
    private int position;

    /**
     * A chosen token.
     *
     * @param logprobs if the request asked for them
     */
    public record Sampled(int id, Optional<TokenLogprobs> logprobs) {}

    SequenceSampler(
            SamplingParams params,
            Optional<TokenGrammar> format,
            int[] prompt,
            Set<Integer> eosIds,
            int vocabularySize,
            long seed) {
        this.params = params;
        this.guide = format.map(each -> new FormatGuide(each.matcher(), params, eosIds, vocabularySize));
        this.thinking = params.thinkingBudget().map(budget -> new ThinkingGuide(budget, prompt));
        this.vocabularySize = vocabularySize;
        this.stream = mix(seed);
        this.endIds = new HashSet<>(eosIds);
        endIds.addAll(params.stopTokenIds());
        this.repetition = params.repetitionPenalty() != 1;
        this.counted = params.frequencyPenalty() != 0 || params.presencePenalty() != 0;
        if (repetition) {
            for (int id : prompt) {
                seen.set(id);
            }
        }
        params.allowedTokenIds().ifPresent(allowed -> {
            forbidden.set(0, vocabularySize);
            allowed.forEach(forbidden::clear);
        });
        this.lookBack = params.badWords().stream().mapToInt(List::size).max().orElse(1) - 1;
    }

    /** Whether the next token is that of the greatest logit, which is known. */
    boolean isKnown() {
        return params.greedy()
                && params.logprobs().isEmpty()
                && guide.isEmpty()
                && thinking.isEmpty()
                && !changesLogits();
    }

    /**
     * Chooses the next token by a row of logits, which stays as it is.
     *
     * @param distribution to work with
     * @return empty if the request's parameters leave no token to choose here
     * @throws IllegalStateException if the row has NaN or positive infinity, or nothing but negative infinity; the sequence cannot go on,
     *     others can
     */
    Optional<Sampled> next(Logits logits, int row, Distribution distribution) {
        if (logits.vocabularySize() != vocabularySize) {
            throw new IllegalArgumentException(
                    "logits: vocabularySize=" + logits.vocabularySize() + ", expected " + vocabularySize);
        }
        guide.ifPresent(format -> format.find(position));
        OptionalInt chosen = choose(logits, row, distribution);
        if (chosen.isEmpty()) {
            return Optional.empty();
        }
        int id = chosen.getAsInt();
        Optional<TokenLogprobs> logprobs = Optional.empty();
        if (params.logprobs().isPresent()) {
            load(logits, row, distribution);
            logprobs = Optional.of(distribution.logprobs(id, params.logprobs().getAsInt()));
        }
        advance(id);
        return Optional.of(new Sampled(id, logprobs));
    }

    /**
     * Goes on to the next position after a token that was chosen, here or by another instance with the same parameters.
     *
     * @throws IllegalStateException if the format of the output does not have the token here
     */
    public void advance(int id) {
        guide.ifPresent(format -> format.advance(id));
        thinking.ifPresent(thoughts -> thoughts.advance(id));
        if (repetition) {
            seen.set(id);
        }
        if (counted) {
            outputCounts.merge(id, 1, Integer::sum);
        }
        if (lookBack > 0) {
            int kept = Math.min(tail.length, lookBack - 1);
            int[] next = Arrays.copyOfRange(tail, tail.length - kept, tail.length + 1);
            next[kept] = id;
            tail = next;
        }
        position++;
    }

    /** Whether the output may end before the token that was last looked for. */
    boolean isComplete() {
        return guide.map(FormatGuide::isComplete).orElse(true);
    }

    private OptionalInt choose(Logits logits, int row, Distribution distribution) {
        boolean changed = changesLogits();
        boolean forbids = !forbidden.isEmpty() || !params.badWords().isEmpty();
        OptionalInt only = forced();
        if (only.isEmpty() && !forbids) {
            only = guide.map(FormatGuide::only).orElse(only);
        }
        if (only.isPresent() || (params.greedy() && !changed)) {
            requireFinite(logits, row);
            return only.isPresent()
                    ? only
                    : guide.map(format -> format.argmax(logits, row))
                            .orElseGet(() -> OptionalInt.of(logits.argmax(row)));
        }
        if (guide.isPresent()) {
            requireFinite(logits, row);
            guide.get().load(logits.row(row), distribution);
        } else {
            load(logits, row, distribution);
        }
        if (changed) {
            changeLogits(distribution);
        }
        if ((changed || guide.isPresent()) && !distribution.findMax()) {
            return OptionalInt.empty();
        }
        return OptionalInt.of(params.greedy() ? distribution.argmax() : draw(distribution));
    }

    /** A token that is chosen whatever the logits. */
    private OptionalInt forced() {
        OptionalInt end = thinking.map(ThinkingGuide::forced).orElse(OptionalInt.empty());
        boolean allowed = end.isEmpty() || guide.isEmpty() || guide.get().allows(end.getAsInt());
        return allowed ? end : OptionalInt.empty();
    }

    private static void requireFinite(Logits logits, int row) {
        if (!logits.isFinite(row)) {
            throw unusable(row);
        }
    }

    static IllegalStateException unusable(int row) {
        return new IllegalStateException("logits of row " + row
                + " leave no token to choose: they have NaN or positive infinity, or are all negative infinity");
    }

    private static void load(Logits logits, int row, Distribution distribution) {
        distribution.load(logits.row(row));
        if (!distribution.findMax()) {
            throw unusable(row);
        }
    }

    private boolean changesLogits() {
        return position < params.minTokens()
                || !params.logitBias().isEmpty()
                || repetition
                || counted
                || !forbidden.isEmpty()
                || !params.badWords().isEmpty();
    }

    /** Whether the output ends with all of the word but its last token. */
    private boolean begun(List<Integer> word) {
        int length = word.size() - 1;
        if (length > tail.length) {
            return false;
        }
        for (int i = 0; i < length; i++) {
            if (tail[tail.length - length + i] != word.get(i)) {
                return false;
            }
        }
        return true;
    }

    private void changeLogits(Distribution distribution) {
        for (int id = forbidden.nextSetBit(0); id >= 0; id = forbidden.nextSetBit(id + 1)) {
            distribution.mask(id);
        }
        for (List<Integer> word : params.badWords()) {
            if (begun(word)) {
                distribution.mask(word.getLast());
            }
        }
        if (position < params.minTokens()) {
            for (int id : endIds) {
                if (id < vocabularySize) {
                    distribution.mask(id);
                }
            }
        }
        params.logitBias().forEach((id, bias) -> change(distribution, id, distribution.logit(id) + bias.floatValue()));
        float factor = Math.clamp((float) params.repetitionPenalty(), Float.MIN_VALUE, Float.MAX_VALUE);
        for (int id = seen.nextSetBit(0); id >= 0; id = seen.nextSetBit(id + 1)) {
            float logit = distribution.logit(id);
            change(distribution, id, logit > 0 ? logit / factor : logit * factor);
        }
        float frequency = (float) params.frequencyPenalty();
        float presence = (float) params.presencePenalty();
        outputCounts.forEach(
                (id, count) -> change(distribution, id, distribution.logit(id) - frequency * count - presence));
    }

    /** A token that may be chosen can be chosen after it, however great the change. */
    private static void change(Distribution distribution, int id, float logit) {
        if (distribution.logit(id) != Float.NEGATIVE_INFINITY) {
            distribution.set(id, Math.clamp(logit, -Float.MAX_VALUE, Float.MAX_VALUE));
        }
    }

    private int draw(Distribution distribution) {
        distribution.soften(params.temperature());
        if (params.minP() > 0) {
            distribution.keepMinP((float) params.minP());
        }
        distribution.keepTop(params.topK(), params.topP());
        return distribution.draw((mix(stream + position) >>> 11) * 0x1p-53);
    }

    /** The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators) one step from here. */
    private static long mix(long state) {
        long z = state + 0x9e3779b97f4a7c15L;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }
}
