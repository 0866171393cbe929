package baton.grammar.automaton;

import java.util.BitSet;
import org.jspecify.annotations.Nullable;

/**
 * A place within a node: the rest of its texts. Equal places of one automaton are the same object.
 *
 * <p>{@code at} is the offset in a literal, the state of a character, table or graph, the index of a sequence's part and how often it
 * came, or the phase of members.
 */
final class Place {
    final int id;
    final Key key;

    /** The states after each symbol, where they have been computed. */
    @Nullable
    State @Nullable [] next;

    /** @param used the members that came, where their order is free */
    record Key(Node node, long at, BitSet used) {
        @Override
        public int hashCode() {
            return (node.id * 31 + Long.hashCode(at)) * 31 + used.hashCode();
        }

        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof Key(Node otherNode, long otherAt, BitSet otherUsed)
                    && node == otherNode
                    && at == otherAt
                    && used.equals(otherUsed);
        }
    }

    Place(int id, Key key) {
        this.id = id;
        this.key = key;
    }
}
