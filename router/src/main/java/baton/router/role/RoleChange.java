package baton.router.role;

import baton.router.metrics.RouterMetrics;
import baton.router.upstream.Instance;

/**
 * The last change of an instance's role.
 *
 * @param to the role that it was to take
 * @param reason in words
 */
public record RoleChange(Instance.Role to, State state, String reason) {
    /** How a change ended; the label {@code result}. */
    public enum State implements RouterMetrics.Label {
        /** The instance has the role, and has served no request in it. */
        PENDING,
        /** The instance has served a request in the role. */
        PROVEN,
        /** The instance has served no request in time, and has its former role again. */
        ROLLED_BACK,
        /** The instance does not take the role, or does not answer. */
        REFUSED
    }
}
