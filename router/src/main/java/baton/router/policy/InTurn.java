package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** One after the other. */
final class InTurn implements InstanceChooser {
    static final String NAME = "round_robin";

    private final AtomicInteger turn = new AtomicInteger();

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        return Choice.of(usable.get(Math.floorMod(turn.getAndIncrement(), usable.size())), Choice.Why.TURN);
    }
}
