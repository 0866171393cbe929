package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The deterministic automaton of one character of a set: of its UTF-8, or of the character itself. */
final class CharacterSteps {
    /** The state after a whole character. */
    static final int COMPLETE = -1;

    /** No character of the set has this byte here. */
    static final int NONE = -2;

    private static final int[] LAST_OF_LENGTH = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};

    /** The edges of each state: first byte, last byte, next state. */
    private final List<int[]> states = new ArrayList<>();

    private final Map<List<Integer>, Integer> known = new HashMap<>();
    private final int start;

    /** @param utf8 whether a step is a byte, or else the character */
    CharacterSteps(CharSet set, boolean utf8) {
        List<int[]> sequences = new ArrayList<>();
        for (CharSet.Range range : set.ranges()) {
            if (utf8) {
                divide(range.first(), range.last(), sequences);
            } else {
                sequences.add(new int[] {range.first(), range.last()});
            }
        }
        start = state(sequences, 0);
    }

    int start() {
        return start;
    }

    int next(int state, int value) {
        int[] edges = states.get(state);
        for (int i = 0; i < edges.length; i += 3) {
            if (edges[i] <= value && value <= edges[i + 1]) {
                return edges[i + 2];
            }
        }
        return NONE;
    }

    void describe(StringBuilder description) {
        description.append('<').append(start);
        for (int[] edges : states) {
            description.append(Arrays.toString(edges));
        }
        description.append('>');
    }

    void markBounds(boolean[] begins) {
        for (int[] edges : states) {
            for (int i = 0; i < edges.length; i += 3) {
                begins[edges[i]] = true;
                begins[edges[i + 1] + 1] = true;
            }
        }
    }

    /** Divides a range into smaller ones. The UTF-8 of each is a range of bytes at each place. */
    private static void divide(int first, int last, List<int[]> sequences) {
        for (int bound : LAST_OF_LENGTH) {
            if (first <= bound && bound < last) {
                divide(first, bound, sequences);
                divide(bound + 1, last, sequences);
                return;
            }
        }
        for (int place = 1; place < length(last); place++) {
            int mask = (1 << 6 * place) - 1;
            if ((first & ~mask) != (last & ~mask)) {
                if ((first & mask) != 0) {
                    divide(first, first | mask, sequences);
                    divide((first | mask) + 1, last, sequences);
                    return;
                }
                if ((last & mask) != mask) {
                    divide(first, (last & ~mask) - 1, sequences);
                    divide(last & ~mask, last, sequences);
                    return;
                }
            }
        }
        int length = length(last);
        int[] sequence = new int[2 * length];
        for (int i = 0; i < length; i++) {
            sequence[2 * i] = byteOf(first, i, length);
            sequence[2 * i + 1] = byteOf(last, i, length);
        }
        sequences.add(sequence);
    }

    private static int length(int codePoint) {
        int length = 1;
        while (codePoint > LAST_OF_LENGTH[length - 1]) {
            length++;
        }
        return length;
    }

    private static int byteOf(int codePoint, int place, int length) {
        if (length == 1) {
            return codePoint;
        }
        int bits = codePoint >> 6 * (length - 1 - place);
        return place == 0 ? (0xF00 >> length & 0xff) | bits : 0x80 | bits & 0x3F;
    }

    /** The state from which these sequences go on at a place. Two of them have the same range of bytes there, or disjoint ones. */
    private int state(List<int[]> sequences, int place) {
        List<Integer> edges = new ArrayList<>();
        for (int from = 0; from < sequences.size(); ) {
            int[] first = sequences.get(from);
            int to = from + 1;
            while (to < sequences.size()
                    && sequences.get(to)[2 * place] == first[2 * place]
                    && sequences.get(to).length > 2 * place + 2) {
                to++;
            }
            edges.add(first[2 * place]);
            edges.add(first[2 * place + 1]);
            edges.add(first.length == 2 * place + 2 ? COMPLETE : state(sequences.subList(from, to), place + 1));
            from = to;
        }
        return known.computeIfAbsent(edges, _ -> {
            states.add(edges.stream().mapToInt(Integer::intValue).toArray());
            return states.size() - 1;
        });
    }
}
