package baton.bench.serve;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * {@code conversation}: conversations of several turns, each turn's prompt being the prompt before it, an answer and a next
 * question. The answers in the prompts are made up, so that turns can be sent at their times. First come all first turns.
 *
 * @param turns of each conversation
 * @param input tokens of a question
 * @param output tokens to ask for, and of each answer in a prompt
 */
public record ConversationData(int turns, int input, int output) implements DataSet {
    /** @throws ConfigException naming the option that is out of its range */
    public ConversationData {
        Require.atLeast("conversation-turns", turns, 1);
        Require.atLeast("conversation-input-len", input, 1);
        Require.atLeast("conversation-output-len", output, 1);
    }

    @Override
    public List<Sample> samples(BenchTokenizer tokens, int count, long seed) throws IOException {
        RandomTexts texts = new RandomTexts(tokens, seed);
        int conversations = Math.max(1, (count + turns - 1) / turns);
        List<int[]> histories = new ArrayList<>();
        for (int i = 0; i < conversations; i++) {
            histories.add(texts.readable(texts.draw(input)));
        }
        List<Sample> samples = new ArrayList<>();
        for (int i = 0; samples.size() < count; i++) {
            int conversation = i % conversations;
            int[] history = histories.get(conversation);
            if (i >= conversations) {
                history = RandomTexts.joined(history, texts.readable(texts.draw(output + input)));
                histories.set(conversation, history);
            }
            samples.add(new Sample(texts.text(history), history.length, output));
        }
        return samples;
    }

    @Override
    public boolean ignoresEos() {
        return true;
    }
}
