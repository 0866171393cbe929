package baton.grammar.automaton;

import java.util.Arrays;

/** Bytes that a grammar does not tell apart are of one class. Symbols after the classes are special tokens. */
final class ByteClasses {
    private final byte[] classOf = new byte[256];
    private final int[] representatives;

    private ByteClasses(boolean[] begins) {
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
    static ByteClasses of(Iterable<Node> nodes) {
        boolean[] begins = new boolean[257];
        for (Node node : nodes) {
            node.markBounds(begins);
        }
        return new ByteClasses(begins);
    }

    int count() {
        return representatives.length;
    }

    int of(byte value) {
        return classOf[value & 0xff] & 0xff;
    }

    /** A byte of the class. */
    int representative(int byteClass) {
        return representatives[byteClass];
    }

    /** Marks where classes begin. */
    void markBounds(boolean[] begins) {
        for (int first : representatives) {
            begins[first] = true;
        }
    }
}
