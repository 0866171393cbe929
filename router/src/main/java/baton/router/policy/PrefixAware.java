package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;

/**
 * The instance that has most of the prompt, by what it was sent before, among those that are not much busier than the least loaded one;
 * where none has any of it, the {@link LeastLoaded} one.
 */
final class PrefixAware implements InstanceChooser {
    static final String NAME = "prefix";

    /** Requests that an instance with the prefix may have more than the least loaded one, and what share of these. */
    private static final int MORE = 4;

    private static final double SHARE = 0.5;

    private final PrefixRecord sent;
    private final LeastLoaded without = new LeastLoaded();

    PrefixAware(PrefixRecord sent) {
        this.sent = sent;
    }

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        Choice least = without.choose(usable, request);
        int running = least.instance().running();
        int most = running + Math.max(MORE, (int) (running * SHARE));
        Instance best = least.instance();
        int known = sent.known(best, request.prefix());
        for (Instance other : usable) {
            if (other == best || other.running() > most) {
                continue;
            }
            int has = sent.known(other, request.prefix());
            if (has > known) {
                best = other;
                known = has;
            }
        }
        return new Choice(best, known == 0 ? Choice.Why.LOAD : Choice.Why.PREFIX, known);
    }

    @Override
    public boolean needsPrefix() {
        return true;
    }

    @Override
    public void sent(Instance instance, RoutingRequest request) {
        sent.sent(instance, request.prefix());
    }
}
