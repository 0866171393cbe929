package baton.engine.sampling;

import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The categorical distribution of one row of logits, or of some of its tokens, with the buffers to work on it; reused from row to row. Tokens
 * have places in the order of their ids, which are the ids themselves where all tokens are loaded.
 *
 * <p><b>Weights.</b> {@code weights[i] = exp((logits[i] - max) / temperature)}: unnormalised probabilities, the greatest being
 * exactly 1. A filter sets weights to 0; the sum of the remaining ones normalises. Sums are kept by block of {@value #BLOCK}, so a draw
 * looks into one block only.
 *
 * <p><b>Selection without sorting.</b> Top-k and top-p need the vocabulary ordered only around one place. Blocks with too small a greatest
 * logit, or too small a sum, for a token that is kept are left out as a whole, and so are tokens of the others. The rest is counted into
 * buckets by {@code max - logit}; the buckets are as wide as 1/128 of that distance, so they are fine where the probabilities are whatever
 * the scale of the logits, and a walk over the buckets finds the one in which the k-th token or the p-th part of the mass lies. Only its
 * members are sorted. Equal logits share a bucket. The order is by logit, greatest first, then by id.
 */
final class Distribution {
    private static final int BLOCK = 512;

    /** Buckets span distances from 2^-8 to 2^12 by the exponent and 7 bits of mantissa of a float; the ends take the rest. */
    private static final int BUCKET_SHIFT = 16;

    private static final int FIRST_BUCKET = (127 - 8) << 7;
    private static final int BUCKETS = 20 << 7;

    /**
     * Top-p first looks only at tokens that weigh a 1,024th or more of the mass that it may leave out, then a 16,384th; if the others weigh more
     * than that mass, at all.
     */
    private static final double[] LEFT_OUT_PARTS = {1 << 10, 1 << 14};

    /** More than sums of weights in another order differ, relatively to their total. */
    private static final double ROUNDING = 1e-9;

    /** {@link #exponential} computes exp(x) as exp(x / 2^11) squared 11 times. */
    private static final double ARGUMENT_SCALE = 1.0 / 2048;

    private final int vocabularySize;
    private final float[] logits;
    private final float[] weights;
    private final double[] blockSums;
    /** Greatest logits. */
    private final float[] blockMaxima;

    private final boolean[] blockHasCandidates;
    /** Places in order; not read if there are {@code size}. */
    private final int[] candidates;

    /** The ids of the loaded tokens; not read if all are loaded. */
    private final int[] ids;

    /** How many tokens are loaded. */
    private int size;

    private int blocks;

    private int candidateCount;
    private final int[] bucketCounts = new int[BUCKETS];
    private final double[] bucketMasses = new double[BUCKETS];
    private long[] members = new long[1024];
    private int memberCount;
    private float max;
    private double total;

    Distribution(int vocabularySize) {
        this.vocabularySize = vocabularySize;
        logits = new float[vocabularySize];
        weights = new float[vocabularySize];
        setSize(vocabularySize);
        blockSums = new double[blocks];
        blockMaxima = new float[blocks];
        blockHasCandidates = new boolean[blocks];
        candidates = new int[vocabularySize];
        ids = new int[vocabularySize];
    }

    private void setSize(int tokens) {
        size = tokens;
        blocks = (tokens + BLOCK - 1) / BLOCK;
    }

    /** Takes {@code vocabularySize} floats from the segment. */
    void load(MemorySegment row) {
        MemorySegment.copy(row, ValueLayout.JAVA_FLOAT, 0, logits, 0, vocabularySize);
        setSize(vocabularySize);
    }

    /** Takes only the floats of the tokens with a set bit. */
    void load(MemorySegment row, long[] bits) {
        int count = 0;
        for (int word = 0; word < bits.length; word++) {
            int first = word * Long.SIZE;
            if (bits[word] == -1) {
                MemorySegment.copy(row, ValueLayout.JAVA_FLOAT, (long) first * Float.BYTES, logits, count, Long.SIZE);
                for (int i = 0; i < Long.SIZE; i++) {
                    ids[count++] = first + i;
                }
            } else {
                for (long rest = bits[word]; rest != 0; rest &= rest - 1) {
                    int id = first + Long.numberOfTrailingZeros(rest);
                    logits[count] = row.getAtIndex(ValueLayout.JAVA_FLOAT, id);
                    ids[count++] = id;
                }
            }
        }
        setSize(count);
    }

    /** Where a token is in the buffers; negative if it is not loaded. */
    private int place(int id) {
        return size == vocabularySize ? id : Arrays.binarySearch(ids, 0, size, id);
    }

    /** A token's logit, negative infinity if it is not loaded. */
    float logit(int id) {
        int place = place(id);
        return place < 0 ? Float.NEGATIVE_INFINITY : logits[place];
    }

    /** Sets the logit of a token, if it is loaded; overflow to infinity becomes the greatest float. */
    void set(int id, float logit) {
        int place = place(id);
        if (place >= 0) {
            logits[place] = Math.min(logit, Float.MAX_VALUE);
        }
    }

    void mask(int id) {
        set(id, Float.NEGATIVE_INFINITY);
    }

    /**
     * Finds the greatest logit; comes before all that follows, after each change of the logits.
     *
     * @return false if there is nothing to choose from: a logit is NaN or positive infinity, or all are negative infinity
     */
    boolean findMax() {
        float greatest = Float.NEGATIVE_INFINITY;
        for (int i = 0; i < size; i++) {
            greatest = Math.max(greatest, logits[i]);
        }
        max = greatest;
        return Float.isFinite(greatest);
    }

    /** The id of the greatest logit, the smallest among equals. */
    int argmax() {
        int place = 0;
        while (logits[place] != max) {
            place++;
        }
        return id(place);
    }

    private int id(int place) {
        return size == vocabularySize ? place : ids[place];
    }

    /** Makes the weights of all loaded tokens for a temperature. */
    void soften(double temperature) {
        exponential(logits, max, 1 / temperature, weights, size);
        sum();
    }

    /** Drops the tokens with a probability below {@code minP} times that of the most probable. */
    void keepMinP(float minP) {
        for (int i = 0; i < size; i++) {
            float weight = weights[i];
            weights[i] = weight >= minP ? weight : 0;
        }
        sum();
    }

    /**
     * Keeps the {@code topK} most probable tokens and all that equal the last of these; then, of these, the fewest most probable tokens
     * with probabilities that add up to {@code topP} or more.
     *
     * @param topK 0 or less keeps all
     * @param topP 1 keeps all
     */
    void keepTop(int topK, double topP) {
        boolean byCount = topK > 0 && topK < size;
        if (!byCount && topP >= 1) {
            return;
        }
        if (!byCount) {
            findCandidatesOfTop(topP);
        } else if (topK <= blocks) {
            findBlockMaxima();
            findCandidates(leastOfTop(topK));
        } else {
            allAreCandidates();
        }
        fillBuckets();
        int lastBucket = BUCKETS - 1;
        float cut = Float.NEGATIVE_INFINITY;
        int last = Integer.MAX_VALUE;
        double mass = total;
        if (byCount) {
            int bucket = 0;
            int before = 0;
            mass = 0;
            while (before + bucketCounts[bucket] < topK) {
                before += bucketCounts[bucket];
                mass += bucketMasses[bucket];
                bucket++;
            }
            sortMembers(bucket);
            cut = logits[placeOf(members[topK - before - 1])];
            for (int i = 0; i < memberCount && logits[placeOf(members[i])] >= cut; i++) {
                mass += weights[placeOf(members[i])];
            }
            lastBucket = bucket;
        }
        if (topP < 1) {
            double wanted = topP * mass;
            // Rounding may keep the sum below the wanted one; the walk ends with the members of its bucket then. It
            // never passes the cut of top-k: up to there it adds the same numbers in the same order as above.
            while (lastBucket > 0 && bucketMasses[lastBucket] == 0) {
                lastBucket--;
            }
            int bucket = 0;
            double reached = 0;
            while (bucket < lastBucket && reached + bucketMasses[bucket] < wanted) {
                reached += bucketMasses[bucket++];
            }
            sortMembers(bucket);
            int i = 0;
            reached += weights[placeOf(members[0])];
            while (reached < wanted && i + 1 < memberCount) {
                reached += weights[placeOf(members[++i])];
            }
            last = placeOf(members[i]);
            cut = logits[last];
        }
        drop(cut, last);
    }

    private void findBlockMaxima() {
        for (int block = 0; block < blocks; block++) {
            int end = endOf(block);
            float greatest = Float.NEGATIVE_INFINITY;
            for (int i = block * BLOCK; i < end; i++) {
                greatest = Math.max(greatest, logits[i]);
            }
            blockMaxima[block] = greatest;
        }
    }

    /** The {@code topK}-th greatest of the blocks' maxima: as many blocks have such a token each, so the {@code topK}-th greatest logit is not less. */
    private float leastOfTop(int topK) {
        float[] sorted = Arrays.copyOf(blockMaxima, blocks);
        Arrays.sort(sorted);
        return sorted[sorted.length - topK];
    }

    /** Lists the tokens with this logit or a greater one. */
    private void findCandidates(float leastLogit) {
        candidateCount = 0;
        for (int block = 0; block < blocks; block++) {
            blockHasCandidates[block] = blockMaxima[block] >= leastLogit;
            if (blockHasCandidates[block]) {
                int end = endOf(block);
                for (int i = block * BLOCK; i < end; i++) {
                    candidates[candidateCount] = i;
                    candidateCount += logits[i] >= leastLogit ? 1 : 0;
                }
            }
        }
    }

    /** Lists tokens with a part of the mass of {@code topP} or more, none of which is less probable than one that is left out. */
    private void findCandidatesOfTop(double topP) {
        double leftOut = (1 - topP) * total;
        for (double parts : LEFT_OUT_PARTS) {
            if (areCandidates(leftOut / parts, leftOut - ROUNDING * total)) {
                return;
            }
        }
        allAreCandidates();
    }

    private void allAreCandidates() {
        Arrays.fill(blockHasCandidates, true);
        candidateCount = size;
    }

    /** Lists the tokens with this weight or a greater one; false if they are many, or the others together weigh more than {@code most}. */
    private boolean areCandidates(double leastWeight, double most) {
        candidateCount = 0;
        double others = 0;
        for (int block = 0; block < blocks && others <= most && candidateCount <= size / 4; block++) {
            blockHasCandidates[block] = blockSums[block] >= leastWeight;
            others += blockSums[block];
            if (blockHasCandidates[block]) {
                int first = candidateCount;
                int end = endOf(block);
                for (int i = block * BLOCK; i < end; i++) {
                    candidates[candidateCount] = i;
                    candidateCount += weights[i] >= leastWeight ? 1 : 0;
                }
                for (int each = first; each < candidateCount; each++) {
                    others -= weights[candidates[each]];
                }
            }
        }
        return others <= most && candidateCount <= size / 4;
    }

    /** Drops all tokens that come after the one with this logit and place. */
    private void drop(float cut, int last) {
        total = 0;
        for (int block = 0; block < blocks; block++) {
            int start = block * BLOCK;
            int end = endOf(block);
            if (blockHasCandidates[block]) {
                for (int i = start; i < end; i++) {
                    float logit = logits[i];
                    if (!(logit > cut || (logit == cut && i <= last))) {
                        weights[i] = 0;
                    }
                }
                blockSums[block] = sum(weights, start, end);
                total += blockSums[block];
            } else {
                Arrays.fill(weights, start, end, 0);
                blockSums[block] = 0;
            }
        }
    }

    private int endOf(int block) {
        return Math.min(size, (block + 1) * BLOCK);
    }

    /** The token at a place of the cumulative distribution, in order of ids. {@code uniform} is in [0, 1). */
    int draw(double uniform) {
        double rest = uniform * total;
        int lastBlock = blocks - 1;
        while (blockSums[lastBlock] == 0) {
            lastBlock--;
        }
        int block = 0;
        while (block < lastBlock && rest >= blockSums[block]) {
            rest -= blockSums[block++];
        }
        int chosen = -1;
        int end = endOf(block);
        for (int i = block * BLOCK; i < end; i++) {
            if (weights[i] > 0) {
                chosen = i;
                if (rest < weights[i]) {
                    break;
                }
                rest -= weights[i];
            }
        }
        return id(chosen);
    }

    /** The probability of the token at a place among those kept. */
    double probability(int place) {
        return weights[place] / total;
    }

    /** Log probabilities by the logits alone: of one token, and of the {@code top} most probable. */
    TokenLogprobs logprobs(int id, int top) {
        soften(1);
        double logOfSum = Math.log(total);
        int count = Math.min(top, size);
        int[] best = new int[count];
        int found = 0;
        float logit = logits[id];
        int rank = 1;
        for (int i = 0; i < size; i++) {
            float value = logits[i];
            if (value > logit || (value == logit && i < id)) {
                rank++;
            }
            if (found < count || (count > 0 && value > logits[best[count - 1]])) {
                int place = found < count ? found++ : count - 1;
                while (place > 0 && value > logits[best[place - 1]]) {
                    best[place] = best[place - 1];
                    place--;
                }
                best[place] = i;
            }
        }
        List<Candidate> listed = new ArrayList<>(count);
        for (int candidate : best) {
            listed.add(new Candidate(candidate, logprob(logits[candidate], logOfSum)));
        }
        return new TokenLogprobs(id, logprob(logit, logOfSum), rank, List.copyOf(listed));
    }

    private float logprob(float logit, double logOfSum) {
        return (float) ((double) logit - max - logOfSum);
    }

    /** Counts the candidates. */
    private void fillBuckets() {
        Arrays.fill(bucketCounts, 0);
        Arrays.fill(bucketMasses, 0);
        boolean all = candidateCount == size;
        for (int each = 0; each < candidateCount; each++) {
            int place = all ? each : candidates[each];
            int bucket = bucket(max - logits[place]);
            bucketCounts[bucket]++;
            bucketMasses[bucket] += weights[place];
        }
    }

    private static int bucket(float distance) {
        int bucket = (Float.floatToRawIntBits(distance) >>> BUCKET_SHIFT) - FIRST_BUCKET;
        return Math.clamp(bucket, 0, BUCKETS - 1);
    }

    /** Puts the candidates of a bucket in order into {@link #members}. */
    private void sortMembers(int bucket) {
        if (members.length < bucketCounts[bucket]) {
            members = new long[Math.max(bucketCounts[bucket], 2 * members.length)];
        }
        memberCount = 0;
        boolean all = candidateCount == size;
        for (int each = 0; each < candidateCount; each++) {
            int place = all ? each : candidates[each];
            if (bucket(max - logits[place]) == bucket) {
                members[memberCount++] = orderedKey(logits[place], place);
            }
        }
        Arrays.sort(members, 0, memberCount);
    }

    /** Sorts greater logits first, then smaller places. */
    private static long orderedKey(float logit, int place) {
        // Adding 0 makes -0 positive: the two are equal. Flipping the bits of negative floats orders all floats as
        // integers.
        int bits = Float.floatToRawIntBits(logit + 0f);
        int ascending = bits ^ ((bits >> 31) & Integer.MAX_VALUE);
        return ((long) ~ascending << 32) | place;
    }

    private static int placeOf(long orderedKey) {
        return (int) orderedKey;
    }

    private void sum() {
        total = 0;
        for (int block = 0; block < blocks; block++) {
            double sum = sum(weights, block * BLOCK, endOf(block));
            blockSums[block] = sum;
            total += sum;
        }
    }

    /** Four chains, for one alone would wait for each addition. */
    private static double sum(float[] values, int start, int end) {
        double a = 0;
        double b = 0;
        double c = 0;
        double d = 0;
        int i = start;
        for (; i + 3 < end; i += 4) {
            a += values[i];
            b += values[i + 1];
            c += values[i + 2];
            d += values[i + 3];
        }
        for (; i < end; i++) {
            a += values[i];
        }
        return (a + b) + (c + d);
    }

    /**
     * {@code out[i] = exp((values[i] - max) * scale)}, relatively wrong by less than 1e-7 where that is a normal float and 0 far below;
     * no value may exceed {@code max}. Only multiplications, additions and conversions, which the compiler turns into vector instructions: a
     * Taylor polynomial of degree 5 at x / 2048, then 11 squarings.
     */
    static void exponential(float[] values, float max, double scale, float[] out, int size) {
        double argumentScale = scale * ARGUMENT_SCALE;
        for (int i = 0; i < size; i++) {
            double x = Math.max(((double) values[i] - max) * argumentScale, -0.1);
            double y = 1 + x * (1 + x * (1.0 / 2 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120)))));
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            y *= y;
            out[i] = (float) y;
        }
    }
}
