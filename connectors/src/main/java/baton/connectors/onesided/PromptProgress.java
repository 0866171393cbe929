package baton.connectors.onesided;

/**
 * How far a step computes a prompt whose blocks may be pushed.
 *
 * @param blocks all of the request's blocks that hold the first {@code after} tokens
 * @param before tokens that are complete before the step
 * @param after tokens that are complete after it
 * @param promptLength of the request
 * @param prompt digest of the prompt
 */
public record PromptProgress(String requestId, int[] blocks, int before, int after, int promptLength, String prompt) {}
