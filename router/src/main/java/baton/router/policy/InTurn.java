package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** One after the other; where instances have different shares, as often as these say. */
final class InTurn implements InstanceChooser {
    static final String NAME = "round_robin";

    private static final double GOLDEN_RATIO = 0.618033988749895;

    private final AtomicInteger turn = new AtomicInteger();

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        return Choice.of(usable.get(index(usable, turn.getAndIncrement())), Choice.Why.TURN);
    }

    /** The turns of instances. */
    static int index(List<Instance> usable, int turn) {
        double total = 0;
        boolean equal = true;
        double[] shares = new double[usable.size()];
        for (int i = 0; i < shares.length; i++) {
            shares[i] = usable.get(i).share();
            total += shares[i];
            equal &= shares[i] == shares[0];
        }
        if (equal) {
            return Math.floorMod(turn, shares.length);
        }
        // Multiples of the golden ratio are spread evenly, however long the row of them is.
        double point = turn * GOLDEN_RATIO;
        double rest = (point - Math.floor(point)) * total;
        int index = 0;
        while (index < shares.length - 1 && rest >= shares[index]) {
            rest -= shares[index];
            index++;
        }
        return index;
    }
}
