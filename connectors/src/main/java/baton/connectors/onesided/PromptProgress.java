package baton.connectors.onesided;

import java.util.List;

/**
 * The progress of a step in computing a prompt, for a push of its blocks.
 *
 * @param blocks of the prompt; of several groups of layers one group after the other; behind the first {@code after} tokens placeholders
 * @param ofGroups how many of them are of each group: those that the token behind the prompt, and the prompt's last, attend to
 * @param before tokens that are complete before the step
 * @param after tokens that are complete after it
 * @param promptLength of the request
 * @param prompt digest of the prompt
 */
public record PromptProgress(
        String requestId,
        int[] blocks,
        List<Integer> ofGroups,
        int before,
        int after,
        int promptLength,
        String prompt) {}
