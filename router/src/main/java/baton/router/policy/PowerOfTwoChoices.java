package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;

/** Chooses, of two random instances, the one with fewer requests of this router under way for its share. */
final class PowerOfTwoChoices implements InstanceChooser {
    static final String NAME = "power_of_two";

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        Instance one = random(usable);
        List<Instance> others = new ArrayList<>(usable);
        others.remove(one);
        Instance other = others.isEmpty() ? one : random(others);
        boolean isBusier = one.running() * other.share() > other.running() * one.share();
        return Choice.of(isBusier ? other : one, Choice.Why.LOAD);
    }

    /** Each as often as its share says. */
    private static Instance random(List<Instance> instances) {
        return instances.get(InTurn.index(instances, ThreadLocalRandom.current().nextInt()));
    }
}
