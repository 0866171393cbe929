package baton.grammar.automaton;

import org.jspecify.annotations.Nullable;

/**
 * A set of stacks: each ends here, or it has a place on its top and a state below it. Stacks with the same top share the state below, so
 * a state is a tree in which equal parts are one. Equal states of one automaton are the same object.
 */
final class State {
    final int id;

    /** Whether a text may end here. */
    final boolean complete;

    /** The tops, in the order of their numbers. */
    final Place[] places;

    /** The state below each top. */
    final State[] below;

    final int depth;
    private final int hash;

    /** The states after each symbol, where they have been computed. */
    @Nullable
    State @Nullable [] next;

    /** Tokens after which a text can still be completed. */
    @Nullable
    TokenSet allowed;

    /** The same where this is the upper part of stacks. */
    @Nullable
    LocalTokens local;

    State(int id, boolean complete, Place[] places, State[] below) {
        this.id = id;
        this.complete = complete;
        this.places = places;
        this.below = below;
        int deepest = 0;
        int sum = complete ? 1 : 0;
        for (int i = 0; i < places.length; i++) {
            deepest = Math.max(deepest, below[i].depth + 1);
            sum = (sum * 31 + places[i].id) * 31 + below[i].id;
        }
        depth = deepest;
        hash = sum;
    }

    /** Whether no text goes on from here, nor ends. */
    boolean isDead() {
        return places.length == 0 && !complete;
    }

    @Override
    public int hashCode() {
        return hash;
    }

    @Override
    public boolean equals(@Nullable Object object) {
        if (!(object instanceof State other) || complete != other.complete || places.length != other.places.length) {
            return false;
        }
        for (int i = 0; i < places.length; i++) {
            if (places[i] != other.places[i] || below[i] != other.below[i]) {
                return false;
            }
        }
        return true;
    }
}
