package baton.router.policy;

import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.InstanceSet;

/** The instances chosen for a completion. */
public sealed interface Placement {

    /** One instance for each leg. */
    record Pair(Choice prefill, Choice decode) implements Placement {}

    /** A decode instance that computes the prompt itself. */
    record DecodeOnly(Choice decode, LocalPrefillReason reason) implements Placement {}

    /**
     * No instance can be used.
     *
     * @param lacking the role without a usable instance
     */
    record Unavailable(InstanceSet lacking) implements Placement {}
}
