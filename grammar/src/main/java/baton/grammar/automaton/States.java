package baton.grammar.automaton;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The states of an automaton, made as texts reach them.
 *
 * <p>The state after a byte is the derivative of the state before it: the set of continuations of texts that have the byte there. A
 * recursive rule puts its continuation below the place within the rule, so the automaton has a stack.
 */
@SuppressWarnings("ReferenceEquality") // equal states of one automaton are the same object
final class States {
    /** Most places on top of each other. */
    private static final int MOST_DEPTH = 1_000;

    /** Most memory of all states, about. */
    private static final long MOST_BYTES = 256L << 20;

    private static final BitSet UNUSED = new BitSet();

    private final Symbols classes;
    private final int symbols;
    private final Map<Place.Key, Place> places = new HashMap<>();
    private final Map<State, State> states = new HashMap<>();
    private final Map<Long, State> joined = new HashMap<>();
    private long bytes;
    private long work;
    private long mostWork = Long.MAX_VALUE;

    /** No text. */
    final State dead;

    /** The empty text only. */
    final State end;

    /** @param specials how many special tokens are symbols after the classes */
    States(Symbols classes, int specials) {
        this.classes = classes;
        symbols = classes.count() + specials;
        dead = intern(false, new Place[0], new State[0]);
        end = intern(true, new Place[0], new State[0]);
    }

    /** Bounds the steps from here on. */
    void allowWork(long steps) {
        work = 0;
        mostWork = steps;
    }

    /** @throws MatchLimitException if there are too many since {@link #allowWork} */
    void spend(long steps) {
        work += steps;
        if (work > mostWork) {
            throw new MatchLimitException("more than " + mostWork + " steps of the grammar are needed");
        }
        if (bytes > MOST_BYTES) {
            throw new MatchLimitException("the states of the grammar take more than " + MOST_BYTES + " bytes");
        }
    }

    /** The steps since {@link #allowWork}. */
    long work() {
        return work;
    }

    /** How much memory the states take, about. */
    long bytes() {
        return bytes;
    }

    void addBytes(long more) {
        bytes += more;
    }

    /** The state in which a node's texts begin. */
    State start(Node node) {
        return switch (node) {
            case Node.Sequence sequence -> inSequence(sequence, 0, 0);
            case Node.Literal literal -> inLiteral(literal, 0);
            case Node.Characters characters -> inCharacter(characters, characters.set.start());
            case Node.Members members -> inMembers(members, 0, 0, 0, UNUSED);
            case Node.Graph graph -> inGraph(graph, 0, 0);
            case Node.Alternatives _, Node.Reference _, Node.Special _, Node.Nonempty _ ->
                alone(node.nullable, place(node, 0, UNUSED));
        };
    }

    State afterByte(State state, byte value) {
        return next(state, classes.of(value));
    }

    State afterSpecial(State state, int number) {
        return next(state, classes.count() + number);
    }

    Symbols classes() {
        return classes;
    }

    State next(State state, int symbol) {
        @Nullable State[] table = state.next;
        if (table == null) {
            table = state.next = new State[symbols];
            bytes += 16 + 4L * symbols;
        }
        State next = table[symbol];
        if (next == null) {
            next = derivative(state, symbol);
            table[symbol] = next;
        }
        return next;
    }

    private State derivative(State state, int symbol) {
        if (state.places.length == 1) {
            return append(derivative(state.places[0], symbol), state.below[0]);
        }
        Union union = new Union();
        for (int i = 0; i < state.places.length; i++) {
            union.append(derivative(state.places[i], symbol), state.below[i]);
        }
        return union.state();
    }

    private State derivative(Place place, int symbol) {
        if (place.key.node() instanceof Node.Literal) {
            return derivative(place.key, symbol);
        }
        @Nullable State[] table = place.next;
        if (table == null) {
            table = place.next = new State[symbols];
            bytes += 16 + 4L * symbols;
        }
        State next = table[symbol];
        if (next == null) {
            spend(1);
            next = derivative(place.key, symbol);
            table[symbol] = next;
        }
        return next;
    }

    private State derivative(Place.Key place, int symbol) {
        long at = place.at();
        boolean isByte = symbol < classes.count();
        int value = isByte ? classes.representative(symbol) : -1;
        return switch (place.node()) {
            case Node.Literal literal ->
                isByte && (literal.bytes[(int) at] & 0xff) == value ? inLiteral(literal, (int) at + 1) : dead;
            case Node.Characters characters ->
                isByte ? inCharacter(characters, characters.set.next((int) at, value)) : dead;
            case Node.Special special -> symbol == classes.count() + special.number ? end : dead;
            case Node.Reference rule -> next(start(rule.parts.getFirst()), symbol);
            case Node.Nonempty nonempty -> next(start(nonempty.part), symbol);
            case Node.Alternatives alternatives -> {
                Union union = new Union();
                for (Node part : alternatives.parts) {
                    if (part.productive) {
                        union.append(next(start(part), symbol), end);
                    }
                }
                yield union.state();
            }
            case Node.Graph graph -> afterInGraph(graph, (int) (at >>> 32), (int) at, symbol);
            case Node.Sequence sequence -> afterInSequence(sequence, (int) (at >>> 32), (int) at, symbol);
            case Node.Members members -> afterInMembers(members, at, place.used(), symbol);
        };
    }

    private State inLiteral(Node.Literal literal, int offset) {
        return offset == literal.bytes.length ? end : alone(false, place(literal, offset, UNUSED));
    }

    private State inCharacter(Node.Characters characters, int state) {
        return switch (state) {
            case CharacterSteps.COMPLETE -> end;
            case CharacterSteps.NONE -> dead;
            default -> alone(false, place(characters, state, UNUSED));
        };
    }

    /** The state of a graph after so many steps. A text can be completed from it. */
    State inGraph(Node.Graph graph, int state, int count) {
        int came = graph.most == Integer.MAX_VALUE ? Math.min(count, graph.least) : count;
        boolean complete = graph.ends[state] && came >= graph.least;
        for (int step = 0; step < graph.next[state].length; step++) {
            if (graph.takes(state, step, came)) {
                return alone(complete, place(graph, (long) state << 32 | came, UNUSED));
            }
        }
        return complete ? end : dead;
    }

    private State afterInGraph(Node.Graph graph, int state, int count, int symbol) {
        Union union = new Union();
        for (int step = 0; step < graph.next[state].length; step++) {
            if (graph.takes(state, step, count)) {
                State after = next(start(graph.steps.get(state).get(step)), symbol);
                if (after != dead) {
                    union.append(after, inGraph(graph, graph.next[state][step], count + 1));
                }
            }
        }
        return union.state();
    }

    /** The state where part {@code index} of a sequence came {@code count} times. */
    State inSequence(Node.Sequence sequence, int index, int count) {
        int at = index;
        int came = count;
        while (at < sequence.most.length && (came >= sequence.most[at] || !sequence.parts.get(at).productive)) {
            at++;
            came = 0;
        }
        if (at == sequence.most.length) {
            return end;
        }
        if (sequence.most[at] == Integer.MAX_VALUE) {
            came = Math.min(came, sequence.least[at]);
        }
        boolean complete = mayLeave(sequence, at, came);
        for (int later = at + 1; complete && later < sequence.most.length; later++) {
            complete = mayLeave(sequence, later, 0);
        }
        return alone(complete, place(sequence, (long) at << 32 | came, UNUSED));
    }

    private static boolean mayLeave(Node.Sequence sequence, int index, int count) {
        return count >= sequence.least[index] || sequence.parts.get(index).nullable;
    }

    private State afterInSequence(Node.Sequence sequence, int index, int count, int symbol) {
        Union union = new Union();
        for (int at = index; at < sequence.most.length; at++) {
            int came = at == index ? count : 0;
            Node part = sequence.parts.get(at);
            if (part.productive && came < sequence.most[at]) {
                State after = next(start(part), symbol);
                if (after != dead) {
                    union.append(after, inSequence(sequence, at, came + 1));
                }
            }
            if (!mayLeave(sequence, at, came)) {
                break;
            }
        }
        return union.state();
    }

    /** The phases of members: none came, a member came, a separator came. */
    private static final int AFTER_MEMBER = 1;

    private static final int AFTER_SEPARATOR = 2;

    private State inMembers(Node.Members members, int phase, int index, int count, BitSet used) {
        int came = members.most == Integer.MAX_VALUE ? Math.min(count, members.least) : count;
        boolean complete = phase != AFTER_SEPARATOR && came >= members.least && missing(members, index, used) == 0;
        boolean more = (phase != AFTER_MEMBER || members.separator.productive)
                && !next(members, index, came, used).isEmpty();
        return more
                ? alone(complete, place(members, (long) phase << 62 | (long) index << 32 | came, used))
                : complete ? end : dead;
    }

    /** How many required members are missing. */
    private static int missing(Node.Members members, int index, BitSet used) {
        int missing = 0;
        for (int member = index; member < members.required.length; member++) {
            missing += members.required[member] && !used.get(member) ? 1 : 0;
        }
        return missing;
    }

    /** The members that may come so that all can be completed; the number of members stands for another one. */
    private static BitSet next(Node.Members members, int index, int count, BitSet used) {
        int size = members.required.length;
        int missing = missing(members, index, used);
        int possible = 0;
        for (int member = index; member < size; member++) {
            possible += !used.get(member) && members.members.get(member).productive ? 1 : 0;
        }
        BitSet next = new BitSet();
        for (int member = index; member <= size; member++) {
            boolean other = member == size;
            boolean needed = !other && members.required[member];
            if (used.get(member) || !(other ? members.others : members.members.get(member)).productive) {
                continue;
            }
            int after = other ? possible : possible - 1;
            int left = needed ? missing - 1 : missing;
            if (!members.separator.productive) {
                after = 0;
            } else if (members.others.productive) {
                after = Integer.MAX_VALUE;
            }
            if (left <= after && (long) count + 1 + left <= members.most && (long) count + 1 + after >= members.least) {
                next.set(member);
            }
            if (!members.anyOrder) {
                possible = other ? possible : possible - 1;
                if (needed) {
                    break;
                }
            }
        }
        return next;
    }

    private State afterInMembers(Node.Members members, long at, BitSet used, int symbol) {
        int phase = (int) (at >>> 62);
        int index = (int) (at >>> 32) & 0x3FFFFFFF;
        int count = (int) at;
        Union union = new Union();
        if (phase == AFTER_MEMBER) {
            State separator = next(start(members.separator), symbol);
            if (separator != dead) {
                union.append(separator, inMembers(members, AFTER_SEPARATOR, index, count, used));
            }
            if (!members.separator.nullable) {
                return union.state();
            }
        }
        BitSet next = next(members, index, count, used);
        for (int member = next.nextSetBit(0); member >= 0; member = next.nextSetBit(member + 1)) {
            boolean other = member == members.required.length;
            State after = next(start(other ? members.others : members.members.get(member)), symbol);
            if (after == dead) {
                continue;
            }
            BitSet usedThen = used;
            int indexThen = index;
            if (!members.anyOrder) {
                indexThen = other ? member : member + 1;
            } else if (!other) {
                usedThen = (BitSet) used.clone();
                usedThen.set(member);
            }
            union.append(after, inMembers(members, AFTER_MEMBER, indexThen, count + 1, usedThen));
        }
        return union.state();
    }

    private Place place(Node node, long at, BitSet used) {
        return places.computeIfAbsent(new Place.Key(node, at, used), key -> {
            bytes += 120 + used.size() / 8;
            return new Place(places.size(), key);
        });
    }

    /** The state with one place, and no other below it. */
    State alone(boolean complete, Place place) {
        return intern(complete, new Place[] {place}, new State[] {end});
    }

    /** The place with a state below it. */
    State push(Place place, State below) {
        return intern(false, new Place[] {place}, new State[] {below});
    }

    /** A place of another automaton of the same grammar. */
    Place adopt(Place other) {
        return place(other.key.node(), other.key.at(), other.key.used());
    }

    State intern(boolean complete, Place[] tops, State[] below) {
        State made = new State(states.size(), complete, tops, below);
        if (made.depth > MOST_DEPTH) {
            throw new MatchLimitException("the output is nested more than " + MOST_DEPTH + " deep");
        }
        State known = states.putIfAbsent(made, made);
        if (known != null) {
            return known;
        }
        bytes += 120 + 8L * tops.length;
        spend(1 + tops.length);
        return made;
    }

    /** The texts of {@code head} followed by those of {@code rest}. */
    State append(State head, State rest) {
        if (rest == end || head == dead) {
            return head;
        }
        if (head == end) {
            return rest;
        }
        if (rest == dead) {
            return dead;
        }
        long pair = (long) head.id << 32 | rest.id;
        State known = joined.get(pair);
        if (known == null) {
            Union union = new Union();
            union.append(head, rest);
            known = union.state();
            joined.put(pair, known);
            bytes += 64;
        }
        return known;
    }

    State union(List<State> parts) {
        if (parts.size() == 1) {
            return parts.getFirst();
        }
        Union union = new Union();
        parts.forEach(part -> union.append(part, end));
        return union.state();
    }

    /** Collects stacks. */
    private final class Union {
        private final List<Place> tops = new ArrayList<>();
        private final List<State> below = new ArrayList<>();
        private boolean complete;

        /** Adds the stacks of {@code head}, with {@code rest} below each. */
        void append(State head, State rest) {
            if (rest == dead) {
                return;
            }
            spend(head.places.length);
            for (int i = 0; i < head.places.length; i++) {
                tops.add(head.places[i]);
                below.add(States.this.append(head.below[i], rest));
            }
            if (head.complete) {
                if (rest == end) {
                    complete = true;
                } else {
                    append(rest, end);
                }
            }
        }

        State state() {
            int size = tops.size();
            if (size == 0) {
                return complete ? end : dead;
            }
            long[] order = new long[size];
            for (int i = 0; i < size; i++) {
                order[i] = (long) tops.get(i).id << 32 | i;
            }
            Arrays.sort(order);
            Place[] sorted = new Place[size];
            State[] sortedBelow = new State[size];
            int count = 0;
            for (long entry : order) {
                Place top = tops.get((int) entry);
                State under = below.get((int) entry);
                if (count > 0 && sorted[count - 1] == top) {
                    sortedBelow[count - 1] =
                            sortedBelow[count - 1] == under ? under : union(List.of(sortedBelow[count - 1], under));
                } else {
                    sorted[count] = top;
                    sortedBelow[count++] = under;
                }
            }
            return intern(complete, Arrays.copyOf(sorted, count), Arrays.copyOf(sortedBelow, count));
        }
    }
}
