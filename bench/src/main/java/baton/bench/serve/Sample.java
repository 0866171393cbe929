package baton.bench.serve;

import java.util.Arrays;
import java.util.Random;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;

/**
 * One request of a data set.
 *
 * @param prompt text, or an array of token ids
 * @param promptTokens of the prompt, as this side counts them
 * @param outputTokens to ask for, at least 1
 */
public record Sample(JsonNode prompt, int promptTokens, int outputTokens) {
    /** Special tokens are at both ends of a vocabulary; as many of its ids at each end are not drawn. */
    private static final int END = 50;

    /** One with a prompt of random ids, which no server has seen. */
    public static Sample random(Random random, int vocabulary, int promptTokens, int outputTokens) {
        ArrayNode ids = JsonNodeFactory.instance.arrayNode();
        Arrays.stream(draw(random, vocabulary, promptTokens)).forEach(ids::add);
        return new Sample(ids, promptTokens, outputTokens);
    }

    /** Random ids of ordinary tokens. */
    public static int[] draw(Random random, int vocabulary, int count) {
        int margin = vocabulary / END;
        return random.ints(count, margin, vocabulary - margin).toArray();
    }
}
