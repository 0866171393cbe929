package baton.grammar.automaton;

import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Makes the deterministic automaton of the texts that are of several regular nodes and not of others. */
@SuppressWarnings("ReferenceEquality") // equal states of one automaton are the same object
final class RegularProduct {
    private static final int MOST_STATES = 20_000;

    /** Larger automata keep their equivalent states. */
    private static final int MOST_MINIMISED = 500;

    private final List<Node> included;
    private final List<Node> excluded;
    private final ByteClasses classes;
    private final States states;
    private final List<int[]> next = new ArrayList<>();
    private final List<List<State>> tuples = new ArrayList<>();

    private final boolean counts;

    private RegularProduct(
            List<Node> included, List<Node> excluded, Iterable<Node> all, boolean counts, long mostWork) {
        this.included = included;
        this.counts = counts;
        this.excluded = excluded;
        classes = ByteClasses.of(all);
        states = new States(classes, 0);
        states.allowWork(mostWork);
    }

    /**
     * A table and how many steps it took.
     *
     * @param whole by state: whether the last one of the included, a repetition without bounds, is where it begins anew
     */
    record Made(Node.Table table, boolean[] whole, long work) {}

    /**
     * Makes it.
     *
     * @param included at least one
     * @param all the nodes that the others are made of, with them
     * @param counts whether texts are to be counted that the last one of the included repeats
     * @return empty if they cannot be counted, as one may go on after it is complete
     * @throws ConfigException if it takes more steps than {@code mostWork}, or has too many states
     */
    static Optional<Made> of(
            List<Node> included, List<Node> excluded, Iterable<Node> all, boolean counts, long mostWork) {
        try {
            return new RegularProduct(included, excluded, all, counts, mostWork).build();
        } catch (MatchLimitException e) {
            throw tooLarge(String.valueOf(e.getMessage()));
        }
    }

    private static ConfigException tooLarge(String why) {
        return new ConfigException(
                "grammar", "an intersection or complement of regular expressions is too large: " + why);
    }

    private Optional<Made> build() {
        Map<List<State>, Integer> numbers = new HashMap<>();
        number(tuple(-1, List.of()), numbers);
        for (int i = 0; i < tuples.size(); i++) {
            if (tuples.size() > MOST_STATES) {
                throw tooLarge("more than " + MOST_STATES + " states");
            }
            int[] edges = new int[classes.count()];
            for (int symbol = 0; symbol < edges.length; symbol++) {
                states.spend(tuples.get(i).size());
                List<State> after = tuple(symbol, tuples.get(i));
                boolean isDead = isDead(after);
                if (counts && !isDead && counted(after).complete && !isWhole(after)) {
                    return Optional.empty();
                }
                edges[symbol] = isDead ? Node.Table.NONE : number(after, numbers);
            }
            next.add(edges);
        }
        return Optional.of(minimised());
    }

    private State counted(List<State> tuple) {
        return tuple.get(included.size() - 1);
    }

    /** Whether the counted automaton is in its first state. */
    private boolean isWhole(List<State> tuple) {
        return counts && counted(tuple) == counted(tuples.getFirst());
    }

    private List<State> tuple(int symbol, List<State> before) {
        List<State> after = new ArrayList<>();
        for (int i = 0; i < included.size() + excluded.size(); i++) {
            if (symbol < 0) {
                Node node = i < included.size() ? included.get(i) : excluded.get(i - included.size());
                after.add(node.productive ? states.start(node) : states.dead);
            } else {
                after.add(states.next(before.get(i), symbol));
            }
        }
        return after;
    }

    private boolean isDead(List<State> tuple) {
        return tuple.subList(0, included.size()).stream().anyMatch(State::isDead);
    }

    private boolean isComplete(List<State> tuple) {
        return tuple.subList(0, included.size()).stream().allMatch(state -> state.complete)
                && tuple.subList(included.size(), tuple.size()).stream().noneMatch(state -> state.complete);
    }

    private int number(List<State> tuple, Map<List<State>, Integer> numbers) {
        return numbers.computeIfAbsent(tuple, _ -> {
            tuples.add(tuple);
            return tuples.size() - 1;
        });
    }

    /** The same texts, without states from which none can be completed, and one state for equivalent ones. */
    private Made minimised() {
        BitSet live = live();
        int[] block = new int[tuples.size()];
        for (int i = 0; i < block.length; i++) {
            block[i] = !live.get(i)
                    ? Node.Table.NONE
                    : live.cardinality() > MOST_MINIMISED ? i : complete(i) + (isWhole(tuples.get(i)) ? 2 : 0);
        }
        boolean finer = live.cardinality() <= MOST_MINIMISED;
        int blocks = 0;
        do {
            Map<List<Integer>, Integer> numbers = new HashMap<>();
            int[] refined = new int[block.length];
            for (int i = 0; i < block.length; i++) {
                if (block[i] == Node.Table.NONE) {
                    refined[i] = Node.Table.NONE;
                    continue;
                }
                List<Integer> signature = new ArrayList<>();
                signature.add(block[i]);
                for (int edge : finer ? next.get(i) : new int[0]) {
                    signature.add(edge == Node.Table.NONE ? edge : block[edge]);
                }
                refined[i] = numbers.computeIfAbsent(signature, _ -> numbers.size());
            }
            block = refined;
            finer &= numbers.size() > blocks;
            blocks = numbers.size();
        } while (finer);

        int[][] edges = new int[blocks][];
        boolean[] complete = new boolean[blocks];
        boolean[] whole = new boolean[blocks];
        for (int i = 0; i < block.length; i++) {
            if (block[i] != Node.Table.NONE && edges[block[i]] == null) {
                int[] renumbered = new int[classes.count()];
                for (int symbol = 0; symbol < renumbered.length; symbol++) {
                    int edge = next.get(i)[symbol];
                    renumbered[symbol] = edge == Node.Table.NONE ? edge : block[edge];
                }
                edges[block[i]] = renumbered;
                complete[block[i]] = complete(i) == 1;
                whole[block[i]] = isWhole(tuples.get(i));
            }
        }
        boolean empty = block[0] == Node.Table.NONE;
        return new Made(new Node.Table(classes, empty ? new int[0][] : edges, complete), whole, states.work());
    }

    private int complete(int state) {
        return isComplete(tuples.get(state)) ? 1 : 0;
    }

    private BitSet live() {
        int size = tuples.size();
        int[] degree = new int[size + 1];
        for (int[] edges : next) {
            for (int edge : edges) {
                if (edge != Node.Table.NONE) {
                    degree[edge + 1]++;
                }
            }
        }
        for (int i = 0; i < size; i++) {
            degree[i + 1] += degree[i];
        }
        int[] sources = new int[degree[size]];
        int[] fill = Arrays.copyOf(degree, size);
        for (int i = 0; i < size; i++) {
            for (int edge : next.get(i)) {
                if (edge != Node.Table.NONE) {
                    sources[fill[edge]++] = i;
                }
            }
        }
        BitSet live = new BitSet();
        int[] queue = new int[size];
        int end = 0;
        for (int i = 0; i < size; i++) {
            if (complete(i) == 1) {
                live.set(i);
                queue[end++] = i;
            }
        }
        for (int i = 0; i < end; i++) {
            for (int source = degree[queue[i]]; source < degree[queue[i] + 1]; source++) {
                if (!live.get(sources[source])) {
                    live.set(sources[source]);
                    queue[end++] = sources[source];
                }
            }
        }
        return live;
    }
}
