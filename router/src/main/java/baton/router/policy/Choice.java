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

    /** The reason in words. */
    public String describe(PromptPrefix prefix) {
        return switch (why) {
            case TURN -> "it was its turn";
            case LOAD -> "it had the fewest requests under way";
            case SESSION -> "the session's requests go there";
            case PREFIX ->
                "it was sent %d of the prompt's %d bytes before"
                        .formatted(prefix.promptBytes() - prefix.bytesAfter(known), prefix.promptBytes());
        };
    }

    static Choice of(Instance instance, Why why) {
        return new Choice(instance, why, 0);
    }
}
