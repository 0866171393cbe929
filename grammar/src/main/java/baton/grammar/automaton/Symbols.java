package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import java.util.Arrays;
import java.util.List;

/**
 * The symbols of an automaton: classes of bytes, or of characters, that a grammar does not tell apart. Symbols after the classes are
 * special tokens.
 */
final class Symbols {
    private final byte[] classOf = new byte[256];
    private final int[] representatives;

    private Symbols(int[] representatives) {
        this.representatives = representatives;
    }

    private Symbols(boolean[] begins) {
        int[] first = new int[256];
        int count = 0;
        for (int value = 0; value < 256; value++) {
            if (value == 0 || begins[value]) {
                first[count++] = value;
            }
            classOf[value] = (byte) (count - 1);
        }
        representatives = Arrays.copyOf(first, count);
    }

    /** The classes of the bytes of a node and of all that it is made of. */
    static Symbols of(Iterable<Node> nodes) {
        boolean[] begins = new boolean[257];
        for (Node node : nodes) {
            node.markBounds(begins);
        }
        return new Symbols(begins);
    }

    /** Some classes of characters. */
    static Symbols of(List<CharSet> classes) {
        return new Symbols(classes.stream()
                .mapToInt(each -> each.ranges().getFirst().first())
                .toArray());
    }

    int count() {
        return representatives.length;
    }

    int of(byte value) {
        return classOf[value & 0xff] & 0xff;
    }

    /** A byte, or a character, of the class. */
    int representative(int symbol) {
        return representatives[symbol];
    }
}
