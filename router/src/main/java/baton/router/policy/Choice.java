package baton.router.policy;

import baton.router.metrics.RouterMetrics;
import baton.router.upstream.Instance;

/**
 * An instance chosen for a leg.
 *
 * @param known bytes from the front of the prompt, as JSON, that it probably has
 * @param tokens from its front that the instance's events say it has; 0 where they say nothing
 */
public record Choice(Instance instance, Why why, int known, int tokens) {

    /** The reason of a choice. */
    public enum Why implements RouterMetrics.Label {
        /** It was the instance's turn. */
        TURN,
        /** The instance has the fewest requests under way. */
        LOAD,
        /** The session's requests go there. */
        SESSION,
        /** The instance was sent most of the prompt. */
        PREFIX,
        /** The instance has most of the prompt, by its KV events. */
        EVENTS
    }

    /** The reason in words. */
    public String describe(RoutingRequest request) {
        return switch (why) {
            case TURN -> "it was its turn";
            case LOAD -> "it had the fewest requests under way";
            case SESSION -> "the session's requests go there";
            case PREFIX ->
                "it was sent %d of the prompt's %d bytes before"
                        .formatted(known, request.prefix().promptBytes());
            case EVENTS ->
                "it has %d of the prompt's %d tokens, by its KV events"
                        .formatted(tokens, request.tokens().orElseThrow().tokens());
        };
    }

    static Choice of(Instance instance, Why why) {
        return new Choice(instance, why, 0, 0);
    }
}
