package baton.bench.serve;

import tools.jackson.databind.JsonNode;

/**
 * One request of a data set.
 *
 * @param prompt text, or an array of token ids
 * @param promptTokens of the prompt, as this side counts them
 * @param outputTokens to ask for, at least 1
 */
public record Sample(JsonNode prompt, int promptTokens, int outputTokens) {}
