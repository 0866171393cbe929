package baton.bench.serve;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * {@code random}: prompts that share a prefix of random tokens, and go on with tokens that follow each other in the vocabulary.
 * Lengths are uniform between {@code length * (1 - ratio)} and {@code length * (1 + ratio)}.
 *
 * @param prefix tokens that all prompts begin with
 * @param input tokens of the rest, those included that a server puts around a prompt
 * @param output tokens to ask for
 * @param inputRatio at least 0, less than 1
 * @param outputRatio likewise
 */
public record RandomData(int prefix, int input, int output, double inputRatio, double outputRatio) implements DataSet {
    /** @throws ConfigException naming the option that is out of its range */
    public RandomData {
        Require.atLeast("random-prefix-len", prefix, 0);
        Require.atLeast("random-input-len", input, 0);
        Require.atLeast("random-output-len", output, 1);
        for (double ratio : new double[] {inputRatio, outputRatio}) {
            if (!(ratio >= 0 && ratio < 1)) {
                throw new ConfigException("random-range-ratio", "is " + ratio + ", must be at least 0 and less than 1");
            }
        }
    }

    @Override
    public List<Sample> samples(BenchTokenizer tokens, int count, long seed) throws IOException {
        int own = Math.max(0, input - tokens.around());
        int least = (int) Math.floor(own * (1 - inputRatio));
        if (prefix + least < 1) {
            throw new ConfigException(
                    "random-input-len",
                    "is " + input + ", of which " + (input - own) + " are put around a prompt; the shortest prompt has "
                            + (prefix + least) + " tokens, must have 1");
        }
        RandomTexts texts = new RandomTexts(tokens, seed);
        int[] shared = prefix == 0 ? new int[0] : texts.readable(texts.draw(prefix));
        List<Sample> samples = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            int length = uniform(texts, least, (int) Math.ceil(own * (1 + inputRatio)));
            int answer = uniform(texts, Math.max(1, (int) Math.floor(output * (1 - outputRatio))), Math.max(1, (int)
                    Math.ceil(output * (1 + outputRatio))));
            int start = texts.random().nextInt(texts.vocabulary());
            int[] ids = texts.readable(RandomTexts.joined(shared, texts.run(start + i, length)));
            samples.add(new Sample(texts.text(ids), ids.length, answer));
        }
        return samples;
    }

    private static int uniform(RandomTexts texts, int least, int most) {
        return least + texts.random().nextInt(most - least + 1);
    }

    @Override
    public boolean ignoresEos() {
        return true;
    }
}
