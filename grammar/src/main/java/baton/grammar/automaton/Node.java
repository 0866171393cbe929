package baton.grammar.automaton;

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

    /** The nodes that it is made of. */
    List<Node> parts() {
        return List.of();
    }

    /** The parts that its texts may begin with. */
    List<Node> firstParts() {
        return parts().stream().filter(part -> part.productive).toList();
    }

    /** Computes {@link #productive} and {@link #nullable} from the parts. */
    abstract void evaluate();

    /** How much memory it takes, about. */
    long bytes() {
        return 64 + 32L * parts().size();
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
        final Utf8Set set;
        private final boolean empty;

        Characters(Utf8Set set, boolean empty) {
            this.set = set;
            this.empty = empty;
        }

        @Override
        void evaluate() {
            productive = !empty;
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
        final List<Node> parts;
        final int[] least;
        final int[] most;

        Sequence(List<Node> parts, int[] least, int[] most) {
            this.parts = parts;
            this.least = least;
            this.most = most;
        }

        @Override
        List<Node> parts() {
            return parts;
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
        final List<Node> parts;

        Alternatives(List<Node> parts) {
            this.parts = parts;
        }

        @Override
        List<Node> parts() {
            return parts;
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
        private List<Node> body = List.of(); // empty until it is defined

        Reference(String name) {
            this.name = name;
        }

        void define(Node definition) {
            body = List.of(definition);
        }

        @Override
        List<Node> parts() {
            return body;
        }

        @Override
        void evaluate() {
            for (Node definition : body) {
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
        }

        @Override
        List<Node> parts() {
            return List.of(part);
        }

        /** A node is only made of a part that has other texts than the empty one, or stands where it does no harm. */
        @Override
        void evaluate() {
            productive = part.productive;
            delimited = part.delimited;
        }
    }

    /** A deterministic automaton over bytes. A text can be completed from each of its states. */
    static final class Table extends Node {
        static final int NONE = -1;

        final ByteClasses classes;
        final int[][] next;
        final boolean[] complete;

        /** @param next the next state by state and class; the start is state 0; no states are no text */
        Table(ByteClasses classes, int[][] next, boolean[] complete) {
            this.classes = classes;
            this.next = next;
            this.complete = complete;
        }

        @Override
        void evaluate() {
            productive = next.length > 0;
            nullable = productive && complete[0];
            delimited = productive;
            for (int state = 0; state < next.length; state++) {
                delimited &= !complete[state] || Arrays.stream(next[state]).allMatch(edge -> edge == NONE);
            }
        }

        @Override
        long bytes() {
            return 64 + (32L + 4L * classes.count()) * next.length;
        }

        @Override
        void markBounds(boolean[] begins) {
            classes.markBounds(begins);
        }
    }

    /** The texts of a table in which some kind of text comes as often as two bounds say. */
    static final class Counted extends Node {
        /** Lengths times edges that are computed at most. */
        private static final long MOST_WORK = 30_000_000;

        final Table table;

        /** By state: whether the text that is counted has come as a whole before it. */
        final boolean[] whole;

        final int least;
        final int most;

        /** How often the text may come until the end, by state; of more than {@code least} only that they are, if there is no most. */
        private final BitSet[] left;

        /** The largest of the least numbers of {@code left}. */
        private final int farthest;

        Counted(Table table, boolean[] whole, int least, int most) {
            this.table = table;
            this.whole = whole;
            this.least = least;
            this.most = most;
            int size = table.next.length;
            left = new BitSet[size];
            List<List<Integer>> before = new ArrayList<>();
            for (int i = 0; i < size; i++) {
                left[i] = new BitSet();
                before.add(new ArrayList<>());
            }
            long edges = 0;
            for (int i = 0; i < size; i++) {
                for (int next : Arrays.stream(table.next[i])
                        .filter(next -> next != Table.NONE)
                        .distinct()
                        .toArray()) {
                    before.get(next).add(i);
                    edges++;
                }
            }
            int longest = most == Integer.MAX_VALUE ? least : most;
            if (longest * edges > MOST_WORK) {
                throw new ConfigException(
                        "grammar", "an intersection with a repetition that is bounded by " + longest + " is too large");
            }
            BitSet ends = new BitSet();
            for (int i = 0; i < size; i++) {
                ends.set(i, table.complete[i]);
            }
            for (int length = 0; length <= longest && !ends.isEmpty(); length++) {
                boolean all = length == longest && most == Integer.MAX_VALUE;
                ends = collect(length, ends, before, all);
            }
            farthest = Arrays.stream(left)
                    .mapToInt(lengths -> lengths.nextSetBit(0))
                    .max()
                    .orElse(0);
        }

        /** Notes a length for states and those before them, and returns those before which the text comes once more. */
        private BitSet collect(int length, BitSet ends, List<List<Integer>> before, boolean all) {
            BitSet longer = new BitSet();
            Deque<Integer> reached = new ArrayDeque<>();
            ends.stream().forEach(reached::add);
            ends.stream().forEach(state -> left[state].set(length));
            while (!reached.isEmpty()) {
                int state = reached.pop();
                for (int earlier : before.get(state)) {
                    if (whole[state] && !all) {
                        longer.set(earlier);
                    } else if (!left[earlier].get(length)) {
                        left[earlier].set(length);
                        reached.push(earlier);
                    }
                }
            }
            return longer;
        }

        /** Whether a text can be completed from a state after so many. */
        boolean goesOn(int state, int count) {
            int more = left[state].nextSetBit(Math.max(least - count, 0));
            return more >= 0 && (most == Integer.MAX_VALUE || more <= most - count);
        }

        /** A count after which the same texts come, as far as so many bytes. */
        int equivalent(int count, int bytes) {
            return count > least && (long) count + bytes + farthest <= most ? least : count;
        }

        @Override
        void evaluate() {
            productive = table.next.length > 0 && goesOn(0, 0);
            nullable = productive && table.complete[0] && least == 0;
        }

        @Override
        long bytes() {
            return table.bytes()
                    + Arrays.stream(left)
                            .mapToLong(lengths -> 64 + lengths.size() / 8)
                            .sum();
        }

        @Override
        void markBounds(boolean[] begins) {
            table.markBounds(begins);
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
        }

        @Override
        List<Node> parts() {
            List<Node> parts = new ArrayList<>(members);
            parts.add(separator);
            parts.add(others);
            return parts;
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

    /** A deterministic automaton over characters. A text can be completed from each of its states. */
    static final class Graph extends Node {
        /** The characters of each step by state. */
        final List<List<Node>> steps;

        /** The next state of each step by state. */
        final int[][] next;

        final boolean[] complete;

        /** @param steps of each state; the start is state 0; no states are no text */
        Graph(List<List<Node>> steps, int[][] next, boolean[] complete) {
            this.steps = steps;
            this.next = next;
            this.complete = complete;
        }

        @Override
        List<Node> parts() {
            return steps.stream().flatMap(List::stream).distinct().toList();
        }

        @Override
        void evaluate() {
            productive = !steps.isEmpty();
            nullable = productive && complete[0];
            delimited = productive;
            for (int state = 0; state < next.length; state++) {
                delimited &= !complete[state] || next[state].length == 0;
            }
        }
    }
}
