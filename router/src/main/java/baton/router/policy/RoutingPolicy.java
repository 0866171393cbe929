package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.Collection;
import java.util.Optional;

/** Chooses the instances that serve a completion. Any thread; must not block. */
public interface RoutingPolicy {
    /** Whether it looks at {@link PromptPrefix#chunks}, which take time to make. */
    boolean needsPrefix();

    /** Chooses for a new completion. */
    Placement place(RoutingRequest request);

    /** Another prefill instance for a leg that failed. */
    Optional<Choice> otherPrefill(RoutingRequest request, Collection<Instance> tried);

    /**
     * Another decode instance for a leg that failed.
     *
     * @param handoff whether there is a prefill leg
     */
    Optional<Choice> otherDecode(RoutingRequest request, Collection<Instance> tried, boolean handoff);

    /** Whether {@link #otherDecode} would find one. */
    boolean hasOtherDecode(Collection<Instance> tried, boolean handoff);
}
