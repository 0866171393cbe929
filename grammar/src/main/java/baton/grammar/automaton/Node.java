package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import baton.kv.ConfigException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Deque;
import java.util.HexFormat;
import java.util.List;

/** A compiled expression. Those of one grammar that are made of the same parts are the same object. */
abstract sealed class Node {
    private static final int LONGEST_DESCRIPTION = 2_000;

    /** Its number among the nodes of the grammar. */
    int id;

    /** Whether some text is of it. */
    boolean productive;

    /** Whether the empty text is of it. */
    boolean nullable;

    /** Whether each of its texts ends with something that has no proper beginning of its own kind, as a quotation mark does. */
    boolean delimited;

    /** The nodes that it is made of; none of a rule until it is defined. */
    List<Node> parts = List.of();

    /** The parts that its texts may begin with. */
    List<Node> firstParts() {
        return parts.stream().filter(part -> part.productive).toList();
    }

    /** Computes {@link #productive} and {@link #nullable} from the parts. */
    abstract void evaluate();

    /** How much memory it takes, about. */
    long bytes() {
        return 64 + 32L * parts.size();
    }

    /**
     * Appends a description that only nodes with the same texts have.
     *
     * @return whether there is one that is short
     */
    boolean describe(StringBuilder description) {
        return false;
    }

    /** Marks the first byte of each range that it tells apart, and the byte after the range. */
    void markBounds(boolean[] begins) {}

    /** Bytes. */
    static final class Literal extends Node {
        final byte[] bytes;

        Literal(byte[] bytes) {
            this.bytes = bytes;
        }

        @Override
        void evaluate() {
            productive = true;
            nullable = bytes.length == 0;
            delimited = bytes.length > 0;
        }

        @Override
        boolean describe(StringBuilder description) {
            description.append('"').append(HexFormat.of().formatHex(bytes));
            return description.length() < LONGEST_DESCRIPTION;
        }

        @Override
        void markBounds(boolean[] begins) {
            for (byte value : bytes) {
                begins[value & 0xff] = true;
                begins[(value & 0xff) + 1] = true;
            }
        }
    }

    /** One character of a set. */
    static final class Characters extends Node {
        final CharSet characters;
        final CharacterSteps set;

        /** @param utf8 whether the symbols of the automaton are bytes, or else characters */
        Characters(CharSet characters, boolean utf8) {
            this.characters = characters;
            set = new CharacterSteps(characters, utf8);
        }

        @Override
        void evaluate() {
            productive = !characters.isEmpty();
            delimited = true;
        }

        @Override
        boolean describe(StringBuilder description) {
            set.describe(description);
            return description.length() < LONGEST_DESCRIPTION;
        }

        @Override
        void markBounds(boolean[] begins) {
            set.markBounds(begins);
        }
    }

    /** A special token. */
    static final class Special extends Node {
        /** The number of the token among those of the grammar. */
        final int number;

        Special(int number) {
            this.number = number;
        }

        @Override
        void evaluate() {
            productive = true;
            delimited = true;
        }
    }

    /** Parts one after the other, each repeated. */
    static final class Sequence extends Node {
        final int[] least;
        final int[] most;

        Sequence(List<Node> parts, int[] least, int[] most) {
            this.parts = parts;
            this.least = least;
            this.most = most;
        }

        @Override
        boolean describe(StringBuilder description) {
            description.append('(');
            boolean whole = true;
            for (int i = 0; i < most.length && whole; i++) {
                whole = parts.get(i).describe(description);
                description
                        .append('{')
                        .append(least[i])
                        .append(',')
                        .append(most[i])
                        .append('}');
            }
            description.append(')');
            return whole;
        }

        @Override
        List<Node> firstParts() {
            List<Node> first = new ArrayList<>();
            boolean reached = true;
            for (int i = 0; i < most.length && reached; i++) {
                if (most[i] > 0 && parts.get(i).productive) {
                    first.add(parts.get(i));
                }
                reached = least[i] == 0 || parts.get(i).nullable;
            }
            return first;
        }

        @Override
        void evaluate() {
            productive = true;
            nullable = true;
            delimited = false;
            for (int i = 0; i < least.length; i++) {
                Node part = parts.get(i);
                productive &= part.productive || least[i] == 0;
                nullable &= least[i] == 0 || part.nullable;
                delimited = part.delimited && least[i] == most[i] && !part.nullable;
            }
        }
    }

    /** Any of them. */
    static final class Alternatives extends Node {
        Alternatives(List<Node> parts) {
            this.parts = parts;
        }

        @Override
        boolean describe(StringBuilder description) {
            description.append('[');
            boolean whole = true;
            for (int i = 0; i < parts.size() && whole; i++) {
                whole = parts.get(i).describe(description);
                description.append('|');
            }
            description.append(']');
            return whole;
        }

        @Override
        void evaluate() {
            productive = parts.stream().anyMatch(part -> part.productive);
            nullable = parts.stream().anyMatch(part -> part.productive && part.nullable);
            delimited = parts.stream().allMatch(part -> part.delimited || !part.productive);
        }
    }

    /** A rule. */
    static final class Reference extends Node {
        final String name;

        Reference(String name) {
            this.name = name;
        }

        void define(Node definition) {
            parts = List.of(definition);
        }

        @Override
        void evaluate() {
            for (Node definition : parts) {
                productive = definition.productive;
                nullable = definition.nullable;
                delimited = definition.delimited;
            }
        }
    }

    /** The texts of a node without the empty one. */
    static final class Nonempty extends Node {
        final Node part;

        Nonempty(Node part) {
            this.part = part;
            parts = List.of(part);
        }

        /** A node is only made of a part that has other texts than the empty one, or stands where it does no harm. */
        @Override
        void evaluate() {
            productive = part.productive;
            delimited = part.delimited;
        }
    }

    /** Members with separators between them: in their order, or in any. */
    static final class Members extends Node {
        final List<Node> members;
        final boolean[] required;
        final boolean anyOrder;
        final Node separator;

        /** Members that come any number of times: between those in any order, after those in their order. */
        final Node others;

        final int least;
        final int most;

        Members(
                List<Node> members,
                boolean[] required,
                boolean anyOrder,
                Node separator,
                Node others,
                int least,
                int most) {
            this.members = members;
            this.required = required;
            this.anyOrder = anyOrder;
            this.separator = separator;
            this.others = others;
            this.least = least;
            this.most = most;
            parts = new ArrayList<>(members);
            parts.add(separator);
            parts.add(others);
        }

        @Override
        void evaluate() {
            int needed = 0;
            int possible = 0;
            productive = true;
            delimited = least > 0 && (others.delimited || !others.productive);
            for (int i = 0; i < required.length; i++) {
                Node member = members.get(i);
                productive &= member.productive || !required[i];
                needed += required[i] ? 1 : 0;
                possible += member.productive ? 1 : 0;
                delimited &= member.delimited || !member.productive;
            }
            int largest = others.productive ? Integer.MAX_VALUE : possible;
            largest = separator.productive ? largest : Math.min(largest, 1);
            productive &= needed <= Math.min(most, largest) && least <= largest;
            nullable = productive && needed == 0 && least == 0;
        }
    }

    /** A deterministic automaton: the texts of its steps, one after the other. A text can be completed after each step that it takes. */
    static final class Graph extends Node {
        /** States times lengths of rests that are found at most. */
        private static final int MOST_LENGTHS = 300_000;

        final List<List<Node>> steps;

        /** The next state of each step by state. */
        final int[][] next;

        final boolean[] ends;
        final int least;
        final int most;

        /** The number of parts that have texts when {@link #left} was made. */
        private long productiveParts = -1;

        /**
         * By state: of how many steps its rests are, as far as two periods. Where there is no most, {@code least} stands for all larger numbers
         * unless they repeat.
         */
        private BitSet[] left = {};

        /** The number from which on {@link #left} repeats itself with {@link #period}, if one was found. */
        private int repeatsFrom = Integer.MAX_VALUE;

        private int period = 1;

        /** The largest of the least numbers of {@code left}. */
        private int farthest;

        /** @param steps of each state; the start is state 0 */
        Graph(List<List<Node>> steps, int[][] next, boolean[] ends, int least, int most) {
            this.steps = steps;
            this.next = next;
            this.ends = ends;
            this.least = least;
            this.most = most;
            parts = steps.stream().flatMap(List::stream).distinct().toList();
        }

        private void findLengths() {
            List<List<Integer>> before = new ArrayList<>();
            BitSet reached = new BitSet();
            left = new BitSet[next.length];
            for (int i = 0; i < next.length; i++) {
                left[i] = new BitSet();
                before.add(new ArrayList<>());
                reached.set(i, ends[i]);
            }
            for (int i = 0; i < next.length; i++) {
                for (int step = 0; step < next[i].length; step++) {
                    if (steps.get(i).get(step).productive) {
                        before.get(next[i][step]).add(i);
                    }
                }
            }
            int longest = most == Integer.MAX_VALUE ? least - 1 : most;
            int last = longest;
            int found = 0;
            repeatsFrom = Integer.MAX_VALUE;
            BitSet earlier = new BitSet();
            int lengthOfEarlier = 0;
            for (int length = 0; length <= last && !reached.isEmpty(); length++) {
                if (repeatsFrom == Integer.MAX_VALUE && reached.equals(earlier)) {
                    repeatsFrom = lengthOfEarlier;
                    period = length - lengthOfEarlier;
                    last = Math.min(longest, length + period - 1);
                } else if ((length & length - 1) == 0) {
                    earlier = reached;
                    lengthOfEarlier = length;
                }
                BitSet longer = new BitSet();
                for (int state = reached.nextSetBit(0); state >= 0; state = reached.nextSetBit(state + 1)) {
                    left[state].set(length);
                    before.get(state).forEach(longer::set);
                    found++;
                }
                if (found > MOST_LENGTHS) {
                    throw new ConfigException(
                            "grammar",
                            "the lengths of texts up to " + longest + " take more than " + MOST_LENGTHS + " steps");
                }
                reached = longer;
            }
            if (most == Integer.MAX_VALUE && repeatsFrom == Integer.MAX_VALUE) {
                Deque<Integer> open = new ArrayDeque<>();
                reached.stream().forEach(open::add);
                while (!open.isEmpty()) {
                    int state = open.pop();
                    if (!left[state].get(least)) {
                        left[state].set(least);
                        open.addAll(before.get(state));
                    }
                }
            }
            farthest = Arrays.stream(left)
                    .mapToInt(lengths -> lengths.nextSetBit(0))
                    .max()
                    .orElse(0);
        }

        /** Whether a text can be completed from a state after so many steps. */
        private boolean goesOn(int state, int count) {
            int fewest = Math.max(least - count, 0);
            int periods = fewest < repeatsFrom ? 0 : (fewest - repeatsFrom) / period * period;
            int more = left[state].nextSetBit(fewest - periods);
            return more >= 0 && (most == Integer.MAX_VALUE || more <= most - count - periods);
        }

        /** Whether a step of a state may come after so many. */
        boolean takes(int state, int step, int count) {
            return steps.get(state).get(step).productive && goesOn(next[state][step], count + 1);
        }

        /** A count after which the same texts come, as far as so many bytes. */
        int equivalent(int count, int bytes) {
            return count > least && (long) count + bytes + farthest <= most ? least : count;
        }

        @Override
        List<Node> firstParts() {
            return steps.getFirst().stream().filter(part -> part.productive).toList();
        }

        @Override
        void evaluate() {
            long count = parts.stream().filter(part -> part.productive).count();
            if (count != productiveParts) {
                productiveParts = count;
                findLengths();
            }
            productive = goesOn(0, 0);
            nullable = productive && ends[0] && least == 0;
            delimited = productive && parts.stream().allMatch(part -> part.delimited || !part.productive);
            for (int state = 0; state < next.length; state++) {
                delimited &= !ends[state] || next[state].length == 0;
            }
        }

        @Override
        long bytes() {
            long bytes = 64;
            for (int i = 0; i < next.length; i++) {
                bytes += 64 + 12L * next[i].length + left[i].size() / 8;
            }
            return bytes;
        }
    }
}
