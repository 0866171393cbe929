package baton.router.policy;

import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.InstanceSet;
import java.util.Optional;

/** The instances chosen for a completion. */
public sealed interface Placement {

    /**
     * One instance for each leg.
     *
     * @param share of the prompt that the prefill instance is to compute
     * @param forecast by which it was decided, if there are goals
     */
    record Pair(Choice prefill, Choice decode, double share, Optional<Forecast> forecast) implements Placement {}

    /**
     * A decode instance that computes the prompt itself.
     *
     * @param forecast if it was decided by one
     */
    record DecodeOnly(Choice decode, LocalPrefillReason reason, Optional<Forecast> forecast) implements Placement {
        DecodeOnly(Choice decode, LocalPrefillReason reason) {
            this(decode, reason, Optional.empty());
        }
    }

    /**
     * No instance can be used.
     *
     * @param lacking the role without a usable instance
     */
    record Unavailable(InstanceSet lacking) implements Placement {}
}
