package baton.engine.sampling;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.ThreadTeam;
import baton.engine.model.Logits;
import baton.engine.sampling.Sampler.Choice;
import baton.engine.sampling.Sampler.LogitRow;
import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class SequenceSamplerTest {
    private static final float INFINITY = Float.POSITIVE_INFINITY;
    private static final int[] NO_PROMPT = {};

    private final Randomness randomness = new Randomness();

    /** A sequence with its sampler. */
    private record Sequence(Sampler sampler, SequenceSampler sequence) {
        static Sequence of(Sampler sampler, SamplingParams params, int[] prompt, long seed) {
            return new Sequence(sampler, sampler.sequence(params, Optional.empty(), prompt, seed));
        }

        SequenceSampler.Sampled next(Logits logits, int row) {
            List<Choice> choices = sampler.choose(logits, List.of(new LogitRow(sequence, row)), ParallelFor.alone());
            return switch (choices.getFirst()) {
                case Choice.Chosen(SequenceSampler.Sampled token) -> token;
                case Choice.NoneLeft _ -> throw new AssertionError("no token is left");
                case Choice.Failed(RuntimeException cause) -> throw cause;
            };
        }
    }

    private static SamplingParamsBuilder params() {
        return SamplingParams.builder().maxTokens(OptionalInt.empty());
    }

    private static Sequence sequence(SamplingParams params, int vocabularySize, long seed) {
        return Sequence.of(new Sampler(vocabularySize, Set.of()), params, NO_PROMPT, seed);
    }

    private static int[] draw(Sequence sequence, FakeLogits logits, int count) {
        return IntStream.range(0, count).map(i -> sequence.next(logits, 0).id()).toArray();
    }

    private static double[] softmax(double temperature, float... logits) {
        double[] weights = IntStream.range(0, logits.length)
                .mapToDouble(i -> Math.exp(logits[i] / temperature))
                .toArray();
        double sum = Arrays.stream(weights).sum();
        return Arrays.stream(weights).map(weight -> weight / sum).toArray();
    }

    private static double chiSquare(int[] outcomes, double[] probabilities) {
        long[] counts = new long[probabilities.length];
        for (int outcome : outcomes) {
            counts[outcome]++;
        }
        double sum = 0;
        for (int i = 0; i < counts.length; i++) {
            double expected = probabilities[i] * outcomes.length;
            if (expected == 0) {
                assertThat(counts[i]).as("outcome %d", i).isZero();
            } else {
                sum += (counts[i] - expected) * (counts[i] - expected) / expected;
            }
        }
        return sum;
    }

    /**
     * The value that chi-square exceeds once in a million fair samples: Wilson and Hilferty's approximation with the normal quantile 4.753.
     * The seeds are fixed, so a test that passes always passes; the bound says that passing was no luck and failing no accident.
     */
    private static double chiSquareBound(int degreesOfFreedom) {
        double part = 2.0 / (9 * degreesOfFreedom);
        return degreesOfFreedom * Math.pow(1 - part + 4.753 * Math.sqrt(part), 3);
    }

    @Test
    void drawsFollowTheTemperature() {
        float[] logits = {0, 1, 2, -1, 0.5f, 1.5f, -2, 0.1f};
        for (double temperature : new double[] {0.5, 1, 2}) {
            SamplingParams params = params().temperature(temperature).build();
            int[] ids = draw(sequence(params, 8, 1), FakeLogits.of(logits), 100_000);
            assertThat(chiSquare(ids, softmax(temperature, logits))).isLessThan(chiSquareBound(7));
            // The test can tell: at a temperature 5 % off, the same sample is out of the question.
            assertThat(chiSquare(ids, softmax(temperature * 1.05, logits))).isGreaterThan(chiSquareBound(7));
        }
    }

    @Test
    void drawsFollowTheFilters() {
        float[] logits = {2, 1.5f, 1, 0.5f, 0, -3};
        // exp(0), exp(-0.5) ... relative to the best: 1, 0.61, 0.37, 0.22, 0.14, 0.007.
        assertFollows(params().topK(3).build(), logits, 3);
        assertFollows(params().minP(0.2).build(), logits, 4);
        // Shares of all: 0.43, 0.26, 0.16, 0.10, 0.06, 0.003; the first three are 0.85.
        assertFollows(params().topP(0.8).build(), logits, 3);
        assertFollows(params().topP(0.86).build(), logits, 4);
        // Of the best four, the first is 0.45 and the first two are 0.73.
        assertFollows(params().minP(0.2).topK(5).topP(0.7).build(), logits, 2);
    }

    private static void assertFollows(SamplingParams params, float[] logits, int kept) {
        double[] probabilities = Arrays.copyOf(softmax(1, Arrays.copyOf(logits, kept)), logits.length);
        int[] ids = draw(sequence(params, logits.length, 2), FakeLogits.of(logits), 50_000);
        assertThat(chiSquare(ids, probabilities)).as(params.toString()).isLessThan(chiSquareBound(kept - 1));
    }

    @Test
    void drawsAtSuccessivePositionsAndUnderSuccessiveSeedsAreIndependent() {
        FakeLogits logits = FakeLogits.of(0, 0, 0, 0);
        double[] even = new double[16];
        Arrays.fill(even, 1.0 / 16);
        int[] ids = draw(sequence(params().build(), 4, 3), logits, 100_000);
        int[] positions = IntStream.range(0, 50_000)
                .map(i -> 4 * ids[2 * i] + ids[2 * i + 1])
                .toArray();
        assertThat(chiSquare(positions, even)).isLessThan(chiSquareBound(15));

        Sampler sampler = new Sampler(4, Set.of());
        int[] seeds = IntStream.range(0, 50_000)
                .map(i -> 4 * first(sampler, logits, 2L * i) + first(sampler, logits, 2L * i + 1))
                .toArray();
        assertThat(chiSquare(seeds, even)).isLessThan(chiSquareBound(15));
    }

    private static int first(Sampler sampler, FakeLogits logits, long seed) {
        return Sequence.of(sampler, params().build(), NO_PROMPT, seed)
                .next(logits, 0)
                .id();
    }

    @Test
    void seedAndPositionAloneDecide() {
        int size = 500;
        long seed = randomness.random.nextLong();
        SamplingParams params = params().topP(0.95).logprobs(3).build();
        float[][] steps = new float[40][];
        Arrays.setAll(steps, i -> randomness.logits(size));
        Sequence alone = sequence(params, size, seed);
        List<SequenceSampler.Sampled> expected = Arrays.stream(steps)
                .map(step -> alone.next(FakeLogits.of(step), 0))
                .toList();

        // The same sequence in a batch with other sequences, which are in other rows and come and go.
        Sampler sampler = new Sampler(size, Set.of(1, 2));
        Sequence sequence = Sequence.of(sampler, params, NO_PROMPT, seed);
        Sequence other = Sequence.of(sampler, params().temperature(2).build(), NO_PROMPT, seed + 1);
        for (int i = 0; i < steps.length; i++) {
            FakeLogits batch = new FakeLogits(new float[][] {randomness.logits(size), steps[i]});
            if (randomness.random.nextBoolean()) {
                other.next(batch, 0);
            }
            assertThat(sequence.next(batch, 1))
                    .as("%s position=%d", randomness, i)
                    .isEqualTo(expected.get(i));
        }
    }

    /** A row of which no token can be chosen ends no other row's choice. */
    @Test
    void severalThreadsChooseTheSameAsOne() {
        int size = 30_000;
        int rows = 23;
        int impossible = 11;
        float[][] logits = new float[rows][];
        Arrays.setAll(logits, i -> randomness.logits(size));
        logits[impossible][3] = Float.NaN;
        FakeLogits batch = new FakeLogits(logits);
        Sampler sampler = new Sampler(size, Set.of());
        List<LogitRow> wanted = IntStream.range(0, rows)
                .mapToObj(row -> new LogitRow(sampler.sequence(mixed(row), Optional.empty(), NO_PROMPT, row), row))
                .toList();
        try (ThreadTeam team = new ThreadTeam(3)) {
            // The threads have begun.
            team.parallelFor(100, 1, (_, _, _) -> Thread.onSpinWait());
            List<Choice> choices = sampler.choose(batch, wanted, team);
            for (int row = 0; row < rows; row++) {
                if (row == impossible) {
                    assertThat(choices.get(row)).isInstanceOf(Choice.Failed.class);
                } else {
                    assertThat(choices.get(row))
                            .as("%s row %d", randomness, row)
                            .isEqualTo(new Choice.Chosen(
                                    sequence(mixed(row), size, row).next(batch, row)));
                }
            }
        }
    }

    private static SamplingParams mixed(int row) {
        return switch (row % 4) {
            case 0 -> SamplingParams.greedy(5);
            case 1 -> params().build();
            case 2 -> params().topP(0.8).logprobs(2).build();
            default -> params().topK(20).temperature(2).build();
        };
    }

    @Test
    void differentSeedsDiffer() {
        FakeLogits logits = FakeLogits.of(new float[1000]);
        assertThat(draw(sequence(params().build(), 1000, 7), logits, 20))
                .isNotEqualTo(draw(sequence(params().build(), 1000, 8), logits, 20));
    }

    @Test
    void greedyTakesTheBatchsResult() {
        FakeLogits logits = FakeLogits.of(0, 3, 1, 3);
        Sequence sequence = sequence(SamplingParams.greedy(5), 4, 0);
        assertThat(sequence.next(logits, 0)).isEqualTo(new SequenceSampler.Sampled(1, Optional.empty()));
    }

    @Test
    void leavesTheLogitsAsTheyAre() {
        float[] logits = {0, 3, 1, 3};
        SamplingParams params = params().logitBias(Map.of(1, -5.0))
                .repetitionPenalty(2)
                .minTokens(1)
                .stopTokenIds(Set.of(3))
                .logprobs(2)
                .build();
        sequence(params, 4, 0).next(FakeLogits.of(logits), 0);
        assertThat(logits).containsExactly(0, 3, 1, 3);
    }

    @Test
    void logitBiasMovesTheChoice() {
        SamplingParams params =
                params().temperature(0).logitBias(Map.of(2, 2.5, 0, -100.0)).build();
        assertThat(draw(sequence(params, 4, 0), FakeLogits.of(3, 2, 1, 0), 1)).containsExactly(2);
        // With 100 in favour, nothing else is ever drawn.
        SamplingParams forced = params().logitBias(Map.of(3, 100.0)).build();
        assertThat(draw(sequence(forced, 4, 0), FakeLogits.of(3, 2, 1, 0), 1000))
                .containsOnly(3);
    }

    @Test
    void noEndTokenBeforeMinTokens() {
        FakeLogits logits = FakeLogits.of(1, 5, 4, 3);
        for (boolean ignoreEos : new boolean[] {false, true}) {
            SamplingParams params = params().temperature(0)
                    .minTokens(2)
                    .stopTokenIds(Set.of(2))
                    .ignoreEos(ignoreEos)
                    .build();
            Sequence sequence = Sequence.of(new Sampler(4, Set.of(1)), params, NO_PROMPT, 0);
            assertThat(draw(sequence, logits, 4)).containsExactly(3, 3, 1, 1);
        }
        SamplingParams drawn = params().minTokens(500).stopTokenIds(Set.of(2)).build();
        Sequence sequence = Sequence.of(new Sampler(4, Set.of(1, 99)), drawn, NO_PROMPT, 0);
        assertThat(draw(sequence, logits, 500)).containsOnly(0, 3);
        assertThat(draw(sequence, logits, 500)).contains(1, 2);
    }

    @Test
    void penaltiesFollowTheirFormulas() {
        // Output so far: 0 twice, 1 once. Prompt: 1, 2.
        SamplingParams params = params().temperature(1)
                .repetitionPenalty(1.25)
                .frequencyPenalty(0.5)
                .presencePenalty(-0.25)
                .build();
        float[] logits = {2, -1, 1, 1};
        float[] penalised = {2 / 1.25f - 0.5f * 2 + 0.25f, -1 * 1.25f - 0.5f + 0.25f, 1 / 1.25f, 1};
        float only = -INFINITY;
        Sampler sampler = new Sampler(4, Set.of());
        int[] ids = IntStream.range(0, 50_000)
                .map(seed -> {
                    Sequence sequence = Sequence.of(sampler, params, new int[] {1, 2}, seed);
                    sequence.next(FakeLogits.of(0, only, only, only), 0);
                    sequence.next(FakeLogits.of(0, only, only, only), 0);
                    sequence.next(FakeLogits.of(only, 0, only, only), 0);
                    return sequence.next(FakeLogits.of(logits), 0).id();
                })
                .toArray();
        assertThat(chiSquare(ids, softmax(1, penalised))).isLessThan(chiSquareBound(3));
        assertThat(chiSquare(ids, softmax(1, logits))).isGreaterThan(chiSquareBound(3));
    }

    @Test
    void eachPenaltyAloneChangesTheGreedyChoice() {
        FakeLogits logits = FakeLogits.of(1, 0.9f, 0.5f);
        // After 0 the penalties turn to 1, and so on: 1 becomes 0.8, 0.9 becomes 0.72.
        assertThat(draw(sequence(params().temperature(0).repetitionPenalty(1.25).build(), 3, 0), logits, 4))
                .containsExactly(0, 1, 0, 0);
        // 1, 0.9, 0.5; then 0.7; 0.7, 0.6; 0.4, 0.6; 0.4, 0.3, 0.5.
        assertThat(draw(sequence(params().temperature(0).frequencyPenalty(0.3).build(), 3, 0), logits, 5))
                .containsExactly(0, 1, 0, 1, 2);
        assertThat(draw(sequence(params().temperature(0).presencePenalty(0.3).build(), 3, 0), logits, 4))
                .containsExactly(0, 1, 0, 0);
        SamplingParams repetition = params().temperature(0).repetitionPenalty(3).build();
        assertThat(Sequence.of(new Sampler(3, Set.of()), repetition, new int[] {0, 1}, 0)
                        .next(logits, 0)
                        .id())
                .isEqualTo(2);
        // The prompt counts for repetition alone.
        SamplingParams others =
                params().temperature(0).presencePenalty(2).frequencyPenalty(2).build();
        assertThat(Sequence.of(new Sampler(3, Set.of()), others, new int[] {0, 0}, 0)
                        .next(logits, 0)
                        .id())
                .isEqualTo(0);
    }

    @Test
    void penaltiesNeverMakeInfinity() {
        SamplingParams params = params().repetitionPenalty(1e-30).build();
        Sequence sequence = Sequence.of(new Sampler(3, Set.of()), params, new int[] {0, 1}, 0);
        assertThat(draw(sequence, FakeLogits.of(1e30f, 1e20f, 5), 50)).containsOnly(0, 1);
    }

    @Test
    void logprobsAreOfTheModelsLogits() {
        float[] logits = {1, 3, 2, 3};
        SamplingParams params = params().temperature(0)
                .logitBias(Map.of(0, 50.0))
                .repetitionPenalty(2)
                .logprobs(2)
                .build();
        TokenLogprobs logprobs =
                sequence(params, 4, 0).next(FakeLogits.of(logits), 0).logprobs().orElseThrow();
        double[] probabilities = softmax(1, logits);
        assertThat(logprobs.id()).isZero();
        assertThat(logprobs.rank()).isEqualTo(4);
        assertThat(logprobs.logprob()).isCloseTo((float) Math.log(probabilities[0]), within(1e-6f));
        assertThat(logprobs.top()).extracting(Candidate::id).containsExactly(1, 3);
        assertThat(logprobs.top().get(1).logprob()).isCloseTo((float) Math.log(probabilities[3]), within(1e-6f));
    }

    @Test
    void logprobsOfZeroTellTheChosenTokenOnly() {
        SamplingParams params = params().temperature(0).logprobs(0).build();
        TokenLogprobs logprobs =
                sequence(params, 2, 0).next(FakeLogits.of(0, 0), 0).logprobs().orElseThrow();
        assertThat(logprobs).isEqualTo(new TokenLogprobs(0, (float) Math.log(0.5), 1, List.of()));
        assertThat(sequence(params().build(), 2, 0).next(FakeLogits.of(0, 0), 0).logprobs())
                .isEmpty();
    }

    @Test
    void onlyAllowedTokensAreChosen() {
        FakeLogits logits = FakeLogits.of(5, 4, 3, 2, 1);
        SamplingParams greedy =
                params().temperature(0).allowedTokenIds(Set.of(2, 4)).build();
        assertThat(draw(sequence(greedy, 5, 0), logits, 3)).containsExactly(2, 2, 2);
        SamplingParams hot =
                params().temperature(2).allowedTokenIds(Set.of(2, 4)).build();
        assertThat(draw(sequence(hot, 5, 0), logits, 500)).containsOnly(2, 4);
        // A bias is added; tokens that are not allowed stay out whatever their bias.
        SamplingParams biased = params().temperature(0)
                .allowedTokenIds(Set.of(2, 4))
                .logitBias(Map.of(0, 100.0, 4, 50.0))
                .build();
        assertThat(draw(sequence(biased, 5, 0), logits, 2)).containsExactly(4, 4);
    }

    @Test
    void allowedTokensMustLeaveAChoice() {
        SamplingParamsBuilder params =
                params().allowedTokenIds(Set.of(3, 4)).badWords(List.of(List.of(4), List.of(3, 3)));
        Sampler sampler = new Sampler(8, Set.of(3));
        assertThat(Sequence.of(sampler, params.build(), NO_PROMPT, 0)).isNotNull();
        // The end token is all that is left, and may not be chosen first.
        assertThatThrownBy(() -> Sequence.of(sampler, params.minTokens(1).build(), NO_PROMPT, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessage("allowed_token_ids: has no token that bad_words and min_tokens leave to choose");
    }

    @Test
    void logprobsIgnoreForbiddenTokens() {
        SamplingParams params =
                params().temperature(0).allowedTokenIds(Set.of(1)).logprobs(1).build();
        TokenLogprobs logprobs =
                sequence(params, 2, 0).next(FakeLogits.of(1, 0), 0).logprobs().orElseThrow();
        assertThat(logprobs.rank()).isEqualTo(2);
        assertThat(logprobs.top()).extracting(Candidate::id).containsExactly(0);
    }

    @Test
    void aBadWordIsNotCompleted() {
        FakeLogits preferences = new FakeLogits(new float[][] {
            {9, 1, 0, 0}, // 0, else 1
            {0, 9, 5, 0}, // 1, else 2
            {0, 0, 9, 5} // 2, else 3
        });
        SamplingParams params = params().temperature(0)
                .badWords(List.of(List.of(0, 1, 2), List.of(1, 1)))
                .build();
        Sequence sequence = sequence(params, 4, 0);
        assertThat(sequence.next(preferences, 0).id()).isEqualTo(0);
        assertThat(sequence.next(preferences, 1).id()).isEqualTo(1);
        // 0 1 2 is forbidden, and so is 1 1.
        assertThat(sequence.next(preferences, 2).id()).isEqualTo(3);
        assertThat(sequence.next(preferences, 1).id()).isEqualTo(1);
        assertThat(sequence.next(preferences, 1).id()).isEqualTo(2);
        // Two tokens that are not the word's beginning.
        assertThat(sequence.next(preferences, 2).id()).isEqualTo(2);
        // A word of one token never comes, and the prompt does not count as its beginning.
        Sequence other = Sequence.of(
                new Sampler(4, Set.of()),
                params().temperature(0)
                        .badWords(List.of(List.of(0), List.of(3, 1)))
                        .build(),
                new int[] {3},
                0);
        assertThat(other.next(preferences, 0).id()).isEqualTo(1);
    }

    @Test
    void promptLogprobsScoreTheGivenTokens() {
        FakeLogits logits = new FakeLogits(new float[][] {{9, 9, 9}, {0, 1, 2}, {-INFINITY, 0, 0}});
        List<TokenLogprobs> logprobs = new Sampler(3, Set.of()).promptLogprobs(logits, 1, new int[] {1, 0}, 1);
        assertThat(logprobs).extracting(TokenLogprobs::id).containsExactly(1, 0);
        assertThat(logprobs).extracting(TokenLogprobs::rank).containsExactly(2, 3);
        assertThat(logprobs.get(0).logprob()).isCloseTo((float) Math.log(softmax(1, 0, 1, 2)[1]), within(1e-6f));
        assertThat(logprobs.get(1).logprob()).isEqualTo(-INFINITY);
        assertThat(logprobs.get(1).top()).containsExactly(new Candidate(1, (float) Math.log(0.5)));
    }

    @Test
    void unusableLogitsFailByRowAndLeaveTheSequenceAsItWas() {
        List<SamplingParams> all = List.of(
                params().build(),
                params().temperature(0).build(),
                params().temperature(0).logprobs(1).build(),
                params().repetitionPenalty(2).topP(0.5).build());
        for (SamplingParams params : all) {
            for (float bad : new float[] {Float.NaN, INFINITY}) {
                FakeLogits logits = new FakeLogits(new float[][] {{0, 0, 0}, {0, bad, 0}, {1, 0, 0}});
                Sequence sequence = sequence(params, 3, 5);
                Sequence unharmed = sequence(params, 3, 5);
                assertThatThrownBy(() -> sequence.next(logits, 1))
                        .isInstanceOf(IllegalStateException.class)
                        .hasMessageContaining("row 1");
                assertThat(sequence.next(logits, 2)).isEqualTo(unharmed.next(logits, 2));
            }
            FakeLogits nothing = FakeLogits.of(-INFINITY, -INFINITY, -INFINITY);
            assertThatThrownBy(() -> sequence(params, 3, 0).next(nothing, 0)).isInstanceOf(IllegalStateException.class);
        }
        FakeLogits logits = FakeLogits.of(0, Float.NaN);
        assertThatThrownBy(() -> new Sampler(2, Set.of()).promptLogprobs(logits, 0, new int[] {0}, 1))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("row 0");
    }

    @Test
    void parametersThatLeaveNoFirstTokenAreRefused() {
        SamplingParams ends = params().minTokens(1).stopTokenIds(Set.of(0, 1)).build();
        assertThatThrownBy(() -> sequence(ends, 2, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("min_tokens: leaves no token of the vocabulary to choose");
        SamplingParams words =
                params().badWords(List.of(List.of(0), List.of(1))).build();
        assertThatThrownBy(() -> sequence(words, 2, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("bad_words: ");
    }

    @Test
    void noTokenIsLeftWhereParametersContradictEachOtherLater() {
        for (double temperature : new double[] {0, 1}) {
            SamplingParams params = params().temperature(temperature)
                    .allowedTokenIds(Set.of(1))
                    .badWords(List.of(List.of(1, 1)))
                    .repetitionPenalty(2)
                    .build();
            Sequence sequence = sequence(params, 3, 0);
            FakeLogits logits = FakeLogits.of(3, 2, 1);
            assertThat(sequence.next(logits, 0).id()).isEqualTo(1);
            assertThat(sequence.sampler.choose(
                            logits, List.of(new LogitRow(sequence.sequence, 0)), ParallelFor.alone()))
                    .containsExactly(new Choice.NoneLeft(Optional.empty()));
        }
    }

    @Test
    void penaltiesBeyondTheRangeOfLogitsLeaveAChoice() {
        FakeLogits logits = FakeLogits.of(1, 0, -1);
        for (double penalty : new double[] {Double.MIN_VALUE, Double.MAX_VALUE}) {
            for (double temperature : new double[] {0, 1}) {
                SamplingParams params = params().temperature(temperature)
                        .repetitionPenalty(penalty)
                        .topP(0.5)
                        .minP(0.1)
                        .topK(2)
                        .build();
                Sequence sequence = Sequence.of(new Sampler(3, Set.of()), params, new int[] {0, 1, 2}, 5);
                assertThat(IntStream.of(draw(sequence, logits, 20)).boxed().toList())
                        .isSubsetOf(penalty < 1 ? Set.of(0) : Set.of(0, 1));
            }
        }
    }

    @Test
    void refusesTokensOutsideTheVocabulary() {
        assertThatThrownBy(() -> sequence(params().logitBias(Map.of(8, 1.0)).build(), 8, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessage("logit_bias: has token 8, must be within the vocabulary, 0 to 7");
        assertThatThrownBy(() -> sequence(params().stopTokenIds(Set.of(-1)).build(), 8, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessage("stop_token_ids: has token -1, must be within the vocabulary, 0 to 7");
    }

    @Test
    void refusesLogitsOfAnotherVocabulary() {
        assertThatThrownBy(() -> sequence(params().build(), 8, 0).next(FakeLogits.of(0, 0), 0))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage("logits: vocabularySize=2, expected 8");
    }
}
