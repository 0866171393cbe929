package baton.engine.sampling;

import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Logits;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.grammar.automaton.MatchLimitException;
import baton.grammar.automaton.TokenGrammar;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;

/** Chooses tokens for all sequences of an engine. Holds the buffers that they share, so it is used by one thread at a time. */
public final class Sampler {
    private final int vocabularySize;
    private final Set<Integer> eosIds;
    private static final String CONTRADICTION = "the request's parameters leave no token that the format has next";

    /** The distributions by the number of the thread that uses one. */
    private final Map<Integer, Distribution> distributions = new ConcurrentHashMap<>();

    /**
     * The logits by which a sequence gets a token.
     *
     * @param row in the step's logits
     */
    public record LogitRow(SequenceSampler sequence, int row) {}

    /** The result of a row. */
    public sealed interface Choice {
        record Chosen(Sampled token) implements Choice {}

        /**
         * The request's parameters leave no token to choose: the sequence ends here.
         *
         * @param incomplete why the output is not of its format, if it is not
         */
        record NoneLeft(Optional<String> incomplete) implements Choice {}

        /**
         * The row has NaN or positive infinity or nothing but negative infinity, or choosing failed otherwise: the sequence cannot go on, others
         * can.
         *
         * @param cause the exception
         */
        record Failed(RuntimeException cause) implements Choice {}
    }

    /**
     * @param vocabularySize logits in a row
     * @param eosIds the model's end tokens
     */
    public Sampler(int vocabularySize, Set<Integer> eosIds) {
        this.vocabularySize = vocabularySize;
        this.eosIds = Set.copyOf(eosIds);
    }

    private Distribution distribution(int thread) {
        return distributions.computeIfAbsent(thread, _ -> new Distribution(vocabularySize));
    }

    /**
     * Begins a sequence.
     *
     * @param format of its output
     * @param prompt its token ids
     * @param seed decides its choices together with the position of the output token, and with nothing else; as in vLLM,
     *     {@code params.seed() + i} for sequence {@code i} of a request
     * @throws ConfigException if a parameter has a token outside the vocabulary
     */
    public SequenceSampler sequence(SamplingParams params, Optional<TokenGrammar> format, int[] prompt, long seed) {
        check(params, vocabularySize, eosIds);
        return new SequenceSampler(params, format, prompt, eosIds, vocabularySize, seed);
    }

    /**
     * Chooses the next tokens of sequences by their rows of logits, which stay as they are.
     *
     * @param threads that the rows are divided among, where more than one takes time
     * @return the result of each row, in the same order
     */
    public List<Choice> choose(Logits logits, List<LogitRow> wanted, ParallelFor threads) {
        int[] read = wanted.stream()
                .filter(each -> !each.sequence.isKnown())
                .mapToInt(LogitRow::row)
                .toArray();
        logits.fetch(read);
        ParallelFor dividing = read.length < 2 ? ParallelFor.alone() : threads;
        Choice[] choices = new Choice[wanted.size()];
        dividing.parallelFor(wanted.size(), 1, (member, first, end) -> {
            for (int i = first; i < end; i++) {
                choices[i] = choose(logits, wanted.get(i), distribution(member));
            }
        });
        return List.of(choices);
    }

    private static Choice choose(Logits logits, LogitRow each, Distribution distribution) {
        try {
            return each.sequence
                    .next(logits, each.row, distribution)
                    .<Choice>map(Choice.Chosen::new)
                    .orElseGet(() -> new Choice.NoneLeft(
                            each.sequence.isComplete() ? Optional.empty() : Optional.of(CONTRADICTION)));
        } catch (MatchLimitException e) {
            return new Choice.NoneLeft(Optional.of("the format takes too much work: " + e.getMessage()));
        } catch (RuntimeException e) {
            return new Choice.Failed(e);
        }
    }

    /**
     * Checks facts that {@link SamplingParams} does not have: that its tokens exist, and that any is left to begin
     * with. May be called by any thread.
     *
     * @throws ConfigException if a parameter has a token outside the vocabulary, or none may be the first
     */
    public static void check(SamplingParams params, int vocabularySize, Set<Integer> eosIds) {
        check("logit_bias", params.logitBias().keySet(), vocabularySize);
        check("stop_token_ids", params.stopTokenIds(), vocabularySize);
        check("allowed_token_ids", params.allowedTokenIds().orElse(Set.of()), vocabularySize);
        params.badWords().forEach(word -> check("bad_words", word, vocabularySize));
        Set<Integer> forbidden = new HashSet<>();
        params.badWords().stream().filter(word -> word.size() == 1).forEach(word -> forbidden.add(word.getFirst()));
        if (params.minTokens() > 0) {
            forbidden.addAll(eosIds);
            forbidden.addAll(params.stopTokenIds());
        }
        if (params.allowedTokenIds().filter(forbidden::containsAll).isPresent()) {
            throw new ConfigException(
                    "allowed_token_ids", "has no token that bad_words and min_tokens leave to choose");
        }
        forbidden.removeIf(id -> id >= vocabularySize);
        if (forbidden.size() == vocabularySize) {
            throw new ConfigException(
                    params.minTokens() > 0 ? "min_tokens" : "bad_words",
                    "leaves no token of the vocabulary to choose, with bad_words and stop_token_ids");
        }
    }

    /**
     * Checks that a format leaves a token to begin with. May be called by any thread.
     *
     * @throws ConfigException if none of the tokens that the format begins with may be chosen, or finding them takes too much work
     */
    public static void checkBeginning(
            SamplingParams params, TokenGrammar format, int vocabularySize, Set<Integer> eosIds) {
        if (params.allowedTokenIds().isEmpty() && params.badWords().isEmpty()) {
            return;
        }
        FormatGuide guide = new FormatGuide(format.matcher(), params, eosIds, vocabularySize);
        try {
            guide.find(0);
        } catch (MatchLimitException e) {
            throw new ConfigException("format", "takes too much work: " + e.getMessage(), e);
        }
        boolean isAnyLeft = IntStream.range(0, vocabularySize)
                .anyMatch(id -> guide.allows(id)
                        && params.allowedTokenIds()
                                .filter(allowed -> !allowed.contains(id))
                                .isEmpty()
                        && !params.badWords().contains(List.of(id)));
        if (!isAnyLeft && !guide.isComplete()) {
            throw new ConfigException(
                    params.allowedTokenIds().isPresent() ? "allowed_token_ids" : "bad_words",
                    "leaves no token with which the output's format begins");
        }
    }

    private static void check(String field, Collection<Integer> ids, int vocabularySize) {
        for (int id : ids) {
            if (id < 0 || id >= vocabularySize) {
                throw new ConfigException(
                        field, "has token " + id + ", must be within the vocabulary, 0 to " + (vocabularySize - 1));
            }
        }
    }

    /**
     * The log probabilities of tokens that are given, not chosen: {@code nextTokens[i]} by row {@code firstRow + i}.
     *
     * @param top number of most probable tokens to report for each
     * @throws IllegalStateException if a row has NaN or positive infinity, or nothing but negative infinity
     */
    public List<TokenLogprobs> promptLogprobs(Logits logits, int firstRow, int[] nextTokens, int top) {
        Distribution distribution = distribution(0);
        List<TokenLogprobs> result = new ArrayList<>(nextTokens.length);
        for (int i = 0; i < nextTokens.length; i++) {
            distribution.load(logits.row(firstRow + i));
            if (!distribution.findMax()) {
                throw SequenceSampler.unusable(firstRow + i);
            }
            result.add(distribution.logprobs(nextTokens[i], top));
        }
        return result;
    }
}
