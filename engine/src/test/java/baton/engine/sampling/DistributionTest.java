package baton.engine.sampling;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class DistributionTest {
    private static final int ROUNDS = 3000;

    private final Randomness randomness = new Randomness();

    /** Filters by sorting the whole vocabulary, in double precision. */
    private static final class Reference {
        private final double[] weights;
        private final double sum;
        private boolean borderline;

        Reference(float[] logits, double temperature, double minP, int topK, double topP) {
            double max = Double.NEGATIVE_INFINITY;
            for (float logit : logits) {
                max = Math.max(max, logit);
            }
            weights = new double[logits.length];
            for (int i = 0; i < logits.length; i++) {
                weights[i] = Math.exp((logits[i] - max) / temperature);
                if (minP > 0) {
                    borderline |= weights[i] != 1 && Math.abs(weights[i] - minP) < 1e-6 * minP;
                    weights[i] = weights[i] < minP ? 0 : weights[i];
                }
            }
            List<Integer> order = bestFirst(logits);
            if (topK > 0 && topK < logits.length) {
                float last = logits[order.get(topK - 1)];
                order.forEach(id -> weights[id] = logits[id] < last ? 0 : weights[id]);
            }
            if (topP < 1) {
                double wanted = topP * Arrays.stream(weights).sum();
                double reached = 0;
                boolean complete = false;
                for (int id : order) {
                    if (complete) {
                        weights[id] = 0;
                    }
                    reached += weights[id];
                    borderline |= weights[id] > 0 && Math.abs(reached - wanted) < 1e-6 * wanted;
                    complete |= reached >= wanted;
                }
            }
            sum = Arrays.stream(weights).sum();
        }

        double probability(int id) {
            return weights[id] / sum;
        }

        static List<Integer> bestFirst(float[] logits) {
            // Subtracting makes 0 and -0 equal, as numbers they are.
            return IntStream.range(0, logits.length)
                    .boxed()
                    .sorted(Comparator.<Integer>comparingDouble(id -> 0d - logits[id])
                            .thenComparing(Comparator.naturalOrder()))
                    .toList();
        }
    }

    private static Distribution distribution(float... logits) {
        Distribution distribution = new Distribution(logits.length);
        distribution.load(MemorySegment.ofArray(logits));
        assertThat(distribution.findMax()).isTrue();
        return distribution;
    }

    private static Set<Integer> kept(Distribution distribution, int size) {
        Set<Integer> kept = new HashSet<>();
        for (int id = 0; id < size; id++) {
            if (distribution.probability(id) > 0) {
                kept.add(id);
            }
        }
        return kept;
    }

    @Test
    void filtersAgreeWithSortingEverything() {
        double[] temperatures = {0.01, 0.3, 0.7, 1, 2};
        for (int round = 0; round < ROUNDS; round++) {
            int size = 1 + randomness.below(round % 10 == 0 ? 3000 : 60);
            float[] logits = randomness.logits(size);
            double temperature = temperatures[randomness.below(temperatures.length)];
            int topK = randomness.below(2) * randomness.below(size + 2);
            double minP;
            double topP;
            Reference reference;
            do {
                // Where a threshold is met within rounding, neither answer is wrong; exact thresholds have a test of
                // their own.
                minP = randomness.below(2) * (float) Math.pow(randomness.random.nextDouble(), 3);
                topP = randomness.below(3) == 0 ? 1 : 1 - Math.pow(randomness.random.nextDouble(), 3);
                topP = topP == 0 ? 1 : topP;
                reference = new Reference(logits, temperature, minP, topK, topP);
            } while (reference.borderline);

            Distribution distribution = distribution(logits);
            distribution.soften(temperature);
            if (minP > 0) {
                distribution.keepMinP((float) minP);
            }
            distribution.keepTop(topK, topP);

            for (int id = 0; id < size; id++) {
                double expected = reference.probability(id);
                assertThat(distribution.probability(id))
                        .as(
                                "%s round=%d temperature=%s minP=%s topK=%d topP=%s id=%d",
                                randomness, round, temperature, minP, topK, topP, id)
                        .isCloseTo(expected, within(1e-6 * expected + 1e-30));
            }
        }
    }

    /** Logits like a trained model's: most of the mass in few tokens, here in a few blocks, and a long tail. */
    private float[] peakedLogits(int size) {
        float[] logits = new float[size];
        for (int i = 0; i < size; i++) {
            logits[i] = (float) (2 * randomness.random.nextGaussian());
        }
        int peaks = 1 + randomness.below(200);
        int[] places = new int[1 + randomness.below(4)];
        Arrays.setAll(places, _ -> randomness.below(size - peaks));
        for (int i = 0; i < peaks; i++) {
            logits[places[i % places.length] + i] = 10 + (float) (3 * randomness.random.nextGaussian());
        }
        return logits;
    }

    @Test
    void tokensThatAreLeftOutAtOnceAreNoneOfThoseThatAreKept() {
        // One for all rows, as a sampler has it; 49 blocks.
        int size = 25_000;
        Distribution distribution = new Distribution(size);
        for (int round = 0; round < 80; round++) {
            float[] logits = randomness.below(4) == 0 ? randomness.logits(size) : peakedLogits(size);
            int topK = randomness.below(2) * randomness.below(80);
            double minP;
            double topP;
            Reference reference;
            do {
                minP = randomness.below(2) * (float) Math.pow(10, -6 * randomness.random.nextDouble());
                topP = switch (randomness.below(6)) {
                    case 0 -> Double.MIN_VALUE;
                    case 1 -> 1;
                    default -> 1 - Math.pow(10, -0.01 - 5 * randomness.random.nextDouble());
                };
                reference = new Reference(logits, 0.8, minP, topK, topP);
            } while (reference.borderline);

            distribution.load(MemorySegment.ofArray(logits));
            assertThat(distribution.findMax()).isTrue();
            distribution.soften(0.8);
            if (minP > 0) {
                distribution.keepMinP((float) minP);
            }
            distribution.keepTop(topK, topP);

            for (int id = 0; id < size; id++) {
                double expected = reference.probability(id);
                double actual = distribution.probability(id);
                if (Math.abs(actual - expected) > 1e-6 * expected + 1e-30) {
                    assertThat(actual)
                            .as("%s round=%d minP=%s topK=%d topP=%s id=%d", randomness, round, minP, topK, topP, id)
                            .isEqualTo(expected);
                }
            }
        }
    }

    @Test
    void loadedTokensAreAsIfTheOthersWereMasked() {
        int size = 3000;
        Distribution some = new Distribution(size);
        for (int round = 0; round < 300; round++) {
            float[] logits = randomness.logits(size);
            long[] bits = new long[(size + 63) / 64];
            int sparse = 1 + randomness.below(200);
            for (int id = 0; id < size; id++) {
                boolean isIn = round % 3 == 0 ? randomness.below(sparse) == 0 : randomness.below(sparse) > 0;
                bits[id / 64] |= (isIn || round == 1 ? 1L : 0L) << id;
            }
            Distribution masked = new Distribution(size);
            masked.load(MemorySegment.ofArray(logits));
            for (int id = 0; id < size; id++) {
                if ((bits[id / 64] >> id & 1) == 0) {
                    masked.mask(id);
                }
            }
            some.load(MemorySegment.ofArray(logits), bits);
            for (int i = 0; i < 10; i++) {
                int id = randomness.below(size);
                assertThat(some.logit(id)).as(randomness.toString()).isEqualTo(masked.logit(id));
                some.set(id, masked.logit(id) / 2);
                masked.set(id, masked.logit(id) / 2);
            }
            boolean isAny = masked.findMax();
            assertThat(some.findMax()).as(randomness.toString()).isEqualTo(isAny);
            if (!isAny) {
                continue;
            }
            float minP = randomness.below(2) * 0.01f;
            int topK = randomness.below(2) * randomness.below(100);
            double topP = 1 - randomness.below(2) * randomness.random.nextDouble();
            for (Distribution each : List.of(masked, some)) {
                each.soften(0.7);
                each.keepMinP(minP);
                each.keepTop(topK, topP);
            }
            assertThat(some.argmax()).as(randomness.toString()).isEqualTo(masked.argmax());
            for (int i = 0; i < 20; i++) {
                double uniform = randomness.random.nextDouble();
                assertThat(some.draw(uniform))
                        .as("%s round=%d minP=%s topK=%d topP=%s", randomness, round, minP, topK, topP)
                        .isEqualTo(masked.draw(uniform));
            }
        }
    }

    @Test
    void keepsTokensThatMeetTheThresholdExactly() {
        Distribution half = distribution(1, 1, 1, 1);
        half.soften(1);
        half.keepTop(0, 0.5);
        assertThat(kept(half, 4)).containsExactlyInAnyOrder(0, 1);

        Distribution equal = distribution(2, 1, 3, 1, 0, 1);
        equal.soften(1);
        equal.keepTop(3, 1);
        assertThat(kept(equal, 6)).containsExactlyInAnyOrder(0, 1, 2, 3, 5);

        Distribution best = distribution(2, 1, 3, 3);
        best.soften(1);
        best.keepMinP(1);
        assertThat(kept(best, 4)).containsExactlyInAnyOrder(2, 3);

        Distribution one = distribution(2, 1, 3, 3);
        one.soften(1);
        one.keepTop(0, Double.MIN_VALUE);
        assertThat(kept(one, 4)).containsExactlyInAnyOrder(2);
    }

    @Test
    void topPCountsTheTokensThatTopKLeft() {
        // Of all: 0.4 0.3 0.2 0.1. Of the best two: 0.57 0.43, so 0.5 needs the first alone; of all it would need both.
        Distribution distribution = distribution(
                (float) Math.log(0.4), (float) Math.log(0.3), (float) Math.log(0.2), (float) Math.log(0.1));
        distribution.soften(1);
        distribution.keepTop(2, 0.5);
        assertThat(kept(distribution, 4)).containsExactlyInAnyOrder(0);
    }

    @Test
    void topPJustBelowOneStaysWithinTopKDespiteRounding() {
        for (int round = 0; round < ROUNDS; round++) {
            int size = 2 + randomness.below(60);
            float[] logits = new float[size];
            for (int i = 0; i < size; i++) {
                logits[i] = (float) (4 * randomness.random.nextGaussian());
            }
            int topK = 1 + randomness.below(size - 1);
            Distribution distribution = distribution(logits);
            distribution.soften(1);
            distribution.keepTop(topK, Math.nextDown(1.0));
            assertThat(Reference.bestFirst(logits).subList(0, topK))
                    .as("%s round=%d topK=%d", randomness, round, topK)
                    .containsAll(kept(distribution, size));
        }
    }

    @Test
    void drawInvertsTheCumulativeDistribution() {
        for (int round = 0; round < ROUNDS; round++) {
            int size = 1 + randomness.below(round % 10 == 0 ? 5000 : 40);
            Distribution distribution = distribution(randomness.logits(size));
            distribution.soften(1);
            distribution.keepTop(randomness.below(size + 1), 1);
            double uniform = switch (randomness.below(8)) {
                case 0 -> 0;
                case 1 -> 1 - 0x1p-53;
                default -> randomness.random.nextDouble();
            };
            int id = distribution.draw(uniform);
            double below = 0;
            for (int i = 0; i < id; i++) {
                below += distribution.probability(i);
            }
            assertThat(distribution.probability(id))
                    .as("%s round=%d", randomness, round)
                    .isPositive();
            assertThat(uniform)
                    .as("%s round=%d id=%d", randomness, round, id)
                    .isBetween(below - 1e-9, below + distribution.probability(id) + 1e-9);
        }
    }

    @Test
    void logprobsAgreeWithSortingEverything() {
        for (int round = 0; round < ROUNDS; round++) {
            int size = 1 + randomness.below(round % 10 == 0 ? 3000 : 40);
            float[] logits = randomness.logits(size);
            int id = randomness.below(size);
            int top = randomness.below(22);

            TokenLogprobs logprobs = distribution(logits).logprobs(id, top);

            Reference reference = new Reference(logits, 1, 0, 0, 1);
            List<Integer> order = Reference.bestFirst(logits);
            double max = logits[order.getFirst()];
            List<Float> expected = new ArrayList<>();
            for (int candidate : order) {
                expected.add((float) (logits[candidate] - max - Math.log(reference.sum)));
            }
            String description = randomness + " round=" + round;
            assertThat(logprobs.id()).isEqualTo(id);
            assertThat(logprobs.rank()).as(description).isEqualTo(order.indexOf(id) + 1);
            assertThat(logprobs.top())
                    .as(description)
                    .extracting(Candidate::id)
                    .containsExactlyElementsOf(order.subList(0, Math.min(top, size)));
            assertClose(logprobs.logprob(), expected.get(order.indexOf(id)), description);
            for (int i = 0; i < logprobs.top().size(); i++) {
                assertClose(logprobs.top().get(i).logprob(), expected.get(i), description);
            }
        }
    }

    private static void assertClose(float actual, float expected, String description) {
        if (Float.isInfinite(expected)) {
            assertThat(actual).as(description).isEqualTo(expected);
        } else {
            assertThat(actual).as(description).isCloseTo(expected, within(1e-6f + 1e-6f * Math.abs(expected)));
        }
    }

    @Test
    void probabilitiesOfTheWholeVocabularySumToOne() {
        for (int round = 0; round < 100; round++) {
            float[] logits = randomness.logits(1 + randomness.below(300));
            double sum = distribution(logits).logprobs(0, logits.length).top().stream()
                    .mapToDouble(candidate -> Math.exp(candidate.logprob()))
                    .sum();
            assertThat(sum).as("%s round=%d", randomness, round).isCloseTo(1, within(1e-5));
        }
    }

    @Test
    void exponentialIsAccurateDownToTheLeastNormalFloat() {
        float[] values = new float[100_000];
        for (int i = 0; i < values.length; i++) {
            values[i] = 12 - 87f * i / values.length;
        }
        values[values.length - 1] = Float.NEGATIVE_INFINITY;
        float[] out = new float[values.length];
        Distribution.exponential(values, 12, 1, out, values.length);
        assertThat(out[0]).isEqualTo(1);
        assertThat(out[values.length - 1]).isZero();
        for (int i = 0; i < values.length - 1; i++) {
            double expected = Math.exp(values[i] - 12d);
            assertThat(Math.abs(out[i] - expected)).as("x=%s", values[i] - 12).isLessThan(1e-7 * expected);
        }
    }

    @Test
    void tellsWhenNothingCanBeChosen() {
        float infinity = Float.POSITIVE_INFINITY;
        for (float[] logits : new float[][] {
            {0, Float.NaN, 1}, {Float.NaN}, {1, infinity}, {-infinity, -infinity}, {-infinity, Float.NaN}
        }) {
            Distribution distribution = new Distribution(logits.length);
            distribution.load(MemorySegment.ofArray(logits));
            assertThat(distribution.findMax()).as(Arrays.toString(logits)).isFalse();
        }
    }
}
