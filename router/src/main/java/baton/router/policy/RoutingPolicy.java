package baton.router.policy;

import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import java.util.Collection;
import java.util.Optional;

/** Chooses the instances that serve a completion. Any thread; must not block. */
public interface RoutingPolicy {
    /** Chooses for a new completion. */
    Placement place(JsonObjectText body);

    /** Another prefill instance for a leg that failed. */
    Optional<Instance> otherPrefill(Collection<Instance> tried);

    /**
     * Another decode instance for a leg that failed.
     *
     * @param handoff whether there is a prefill leg
     */
    Optional<Instance> otherDecode(Collection<Instance> tried, boolean handoff);
}
