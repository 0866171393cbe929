package baton.router.policy;

import baton.router.upstream.Instance;

/**
 * An instance chosen for a leg.
 *
 * @param known chunks of the prompt that it probably has
 */
public record Choice(Instance instance, Why why, int known) {

    /** What decided. */
    public enum Why {
        /** It was its turn. */
        TURN,
        /** It has the fewest requests under way. */
        LOAD,
        /** The session's requests go there. */
        SESSION,
        /** It has most of the prompt. */
        PREFIX;

        /** Its name in metrics and headers. */
        public String label() {
            return name().toLowerCase(java.util.Locale.ROOT);
        }
    }

    static Choice of(Instance instance, Why why) {
        return new Choice(instance, why, 0);
    }
}
