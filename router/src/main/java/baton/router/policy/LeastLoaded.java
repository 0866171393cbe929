package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** The one with the fewest requests of this router under way for its share; among several with as few, one after the other. */
final class LeastLoaded implements InstanceChooser {
    static final String NAME = "least_loaded";

    private final AtomicInteger turn = new AtomicInteger();

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        int first = InTurn.index(usable, turn.getAndIncrement());
        Instance best = usable.get(first);
        double least = best.running() / best.share();
        for (int i = 1; i < usable.size(); i++) {
            Instance other = usable.get((first + i) % usable.size());
            double load = other.running() / other.share();
            if (load < least) {
                best = other;
                least = load;
            }
        }
        return Choice.of(best, Choice.Why.LOAD);
    }
}
