package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.Collection;
import java.util.Optional;

/** Chooses the instances that serve a completion. Any thread; must not block. */
public interface RoutingPolicy {
    /** Whether it looks at {@link PromptPrefix#chunks}, which take time to make. */
    boolean needsPrefix();

    /**
     * Chooses for a completion of which the client has nothing.
     *
     * @param tried decode instances that are not to get it
     */
    Placement place(RoutingRequest request, Collection<Instance> tried);

    /**
     * The measurement of a request that is served as it was placed.
     *
     * @param isLocal whether the decode instance computes the prompt
     */
    default LatencyMeasurement measure(Forecast forecast, boolean isLocal, Instance decode) {
        return LatencyMeasurement.NONE;
    }

    /**
     * Another prefill instance for a leg that failed.
     *
     * @param decode the instance that it hands over to
     */
    Optional<Choice> otherPrefill(RoutingRequest request, Collection<Instance> tried, Instance decode);

    /**
     * Another decode instance for a leg that failed.
     *
     * @param prefill the instance that hands over to it; empty if there is no prefill leg
     */
    Optional<Choice> otherDecode(RoutingRequest request, Collection<Instance> tried, Optional<Instance> prefill);

    /** Whether {@link #otherDecode} would find one. */
    boolean hasOtherDecode(Collection<Instance> tried, Optional<Instance> prefill);
}
