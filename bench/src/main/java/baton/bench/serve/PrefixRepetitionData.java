package baton.bench.serve;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * {@code prefix_repetition}: a few random prefixes, each with as many random suffixes, in random order.
 *
 * @param prefixes how many; each has {@code count / prefixes} prompts
 * @param prefix tokens of each
 * @param suffix tokens of each prompt after it
 * @param output tokens to ask for
 * @param shuffled whether the prompts are in random order, else one prefix after the other
 */
public record PrefixRepetitionData(int prefixes, int prefix, int suffix, int output, boolean shuffled)
        implements DataSet {
    /** @throws ConfigException naming the option that is out of its range */
    public PrefixRepetitionData {
        Require.atLeast("prefix-repetition-num-prefixes", prefixes, 1);
        Require.atLeast("prefix-repetition-prefix-len", prefix, 1);
        Require.atLeast("prefix-repetition-suffix-len", suffix, 0);
        Require.atLeast("prefix-repetition-output-len", output, 1);
    }

    @Override
    public List<Sample> samples(BenchTokenizer tokens, int count, long seed) throws IOException {
        if (count < prefixes) {
            throw new ConfigException(
                    "num-prompts",
                    "is " + count + ", must be at least prefix-repetition-num-prefixes, which is " + prefixes);
        }
        RandomTexts texts = new RandomTexts(tokens, seed);
        List<Sample> samples = new ArrayList<>();
        for (int i = 0; i < prefixes; i++) {
            int[] shared = texts.readable(texts.draw(prefix));
            for (int j = 0; j < count / prefixes; j++) {
                int[] ids = RandomTexts.joined(shared, texts.readable(texts.draw(suffix)));
                samples.add(new Sample(texts.text(ids), ids.length, output));
            }
        }
        if (shuffled) {
            Collections.shuffle(samples, texts.random());
        }
        return samples;
    }
}
