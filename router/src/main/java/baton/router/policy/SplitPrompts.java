package baton.router.policy;

import baton.kv.ConfigException;
import java.util.OptionalDouble;

/**
 * Which share of a prompt the prefill instance computes, from the prompt's first token on; the decode instance computes the rest.
 *
 * @param auto whether the share follows the queues of both instances
 * @param fixed share of every prompt, over 0 and under 1; empty if prompts are not split, or by their queues
 */
public record SplitPrompts(boolean auto, OptionalDouble fixed) {
    public static final SplitPrompts OFF = new SplitPrompts(false, OptionalDouble.empty());

    /** JSON of a prompt that is not split by queues if it has less. */
    static final int LEAST_BYTES = 2048;

    /** The smallest share by queues: less is not worth a hand-over. */
    static final double LEAST = 0.25;

    /** @throws ConfigException if the value is neither {@code off} nor {@code auto} nor a share */
    public static SplitPrompts parse(String value) {
        return switch (value) {
            case "off" -> OFF;
            case "auto" -> new SplitPrompts(true, OptionalDouble.empty());
            default -> {
                double share;
                try {
                    share = Double.parseDouble(value);
                } catch (NumberFormatException _) {
                    share = Double.NaN;
                }
                if (!(share > 0 && share < 1)) {
                    throw ConfigException.unsupported("split prompts", value, "off, auto, a number over 0 and under 1");
                }
                yield new SplitPrompts(false, OptionalDouble.of(share));
            }
        };
    }

    public boolean isOff() {
        return !auto && fixed.isEmpty();
    }

    /**
     * The share, 1 for the whole prompt. By queues it is the one with which both instances have computed their parts at the same time, if all prompts under
     * way at the prefill instance are as long as this one, and both are as fast.
     *
     * @param promptBytes JSON of the prompt
     * @param ahead requests under way at the prefill instance
     * @param besideBytes JSON of prompts that the decode instance computes
     */
    public double share(int promptBytes, int ahead, long besideBytes) {
        if (!auto) {
            return fixed.orElse(1);
        }
        if (ahead == 0 || promptBytes < LEAST_BYTES) {
            return 1;
        }
        return Math.clamp(((double) besideBytes / promptBytes + 1 - ahead) / 2, LEAST, 1);
    }
}
