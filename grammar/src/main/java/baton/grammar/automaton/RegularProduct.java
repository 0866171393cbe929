package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;

/** Makes the deterministic automaton of the characters of texts that are of several regular nodes and not of others. */
public final class RegularProduct {
    private static final int NONE = -1;

    /** Classes with more ranges have a step of their own, so that few different sets have many ranges. */
    private static final int FEW_RANGES = 8;

    /** Equivalent states are kept where they are not found in so many steps. */
    private static final int MOST_REFINEMENT = 50_000;

    /** Steps that each product takes. */
    private static final int WORK_OF_PRODUCT = 200;

    /** Steps of each node that a product is made of. */
    private static final int WORK_OF_NODE = 2;

    private final List<Node> operands;

    /** The operands from this one on exclude. */
    private final int included;

    /** Sets of characters that no operand tells apart. */
    private final List<CharSet> classes;

    private final States states;
    private final Map<List<State>, Integer> numbers = new HashMap<>();
    private final List<List<State>> tuples = new ArrayList<>();
    private final List<int[]> next = new ArrayList<>();

    private RegularProduct(List<Node> operands, int included, Collection<Node> all, long mostWork) {
        this.operands = operands;
        this.included = included;
        Set<CharSet> sets = new LinkedHashSet<>();
        for (Node node : all) {
            if (node instanceof Node.Characters characters) {
                sets.add(characters.characters);
            }
        }
        long ranges = sets.stream().mapToLong(set -> set.ranges().size()).sum();
        if (ranges > mostWork) {
            throw new MatchLimitException("it has more than " + mostWork + " ranges of characters");
        }
        classes = classes(sets);
        states = new States(Symbols.of(classes), 0);
        states.allowWork(mostWork);
        states.spend(ranges + WORK_OF_PRODUCT + (long) WORK_OF_NODE * all.size());
    }

    /**
     * An automaton and how many steps it took.
     *
     * @param automaton the texts of its steps are characters
     */
    public record Made(Expression.Automaton automaton, long work) {}

    /**
     * The automaton of an expression without rules and special tokens.
     *
     * @throws ConfigException if it takes more steps than {@code mostWork}
     */
    public static Made of(Expression regular, long mostWork) {
        return GrammarCompiler.automaton(regular, mostWork);
    }

    /**
     * Makes it.
     *
     * @param included at least one, over characters
     * @param all the nodes that the others are made of, with them
     * @throws ConfigException if it takes more steps than {@code mostWork}
     */
    static Made of(List<Node> included, List<Node> excluded, Collection<Node> all, long mostWork) {
        List<Node> operands = new ArrayList<>(included);
        operands.addAll(excluded);
        try {
            return new RegularProduct(operands, included.size(), all, mostWork).build();
        } catch (MatchLimitException e) {
            throw new ConfigException(
                    "grammar", "an intersection or complement of regular expressions is too large: " + e.getMessage());
        }
    }

    /** All characters, divided by some sets. */
    private static List<CharSet> classes(Set<CharSet> sets) {
        TreeMap<Integer, BitSet> changes = new TreeMap<>();
        changes.put(0, new BitSet());
        int number = 0;
        for (CharSet set : sets) {
            for (CharSet.Range range : set.ranges()) {
                changes.computeIfAbsent(range.first(), _ -> new BitSet()).flip(number);
                changes.computeIfAbsent(range.last() + 1, _ -> new BitSet()).flip(number);
            }
            number++;
        }
        Map<BitSet, List<CharSet.Range>> bySets = new LinkedHashMap<>();
        BitSet of = new BitSet();
        changes.forEach((first, change) -> {
            of.xor(change);
            Integer end = changes.higherKey(first);
            int last = end == null ? Character.MAX_CODE_POINT : end - 1;
            if (first <= last) {
                bySets.computeIfAbsent((BitSet) of.clone(), _ -> new ArrayList<>())
                        .add(new CharSet.Range(first, last));
            }
        });
        return bySets.values().stream()
                .map(ranges -> CharSet.union(ranges).intersection(CharSet.ALL))
                .filter(set -> !set.isEmpty())
                .toList();
    }

    private Made build() {
        State[] start = new State[operands.size()];
        Arrays.setAll(start, i -> operands.get(i).productive ? states.start(operands.get(i)) : states.dead);
        number(start);
        for (int i = 0; i < tuples.size(); i++) {
            int[] edges = new int[classes.size()];
            for (int symbol = 0; symbol < edges.length; symbol++) {
                states.spend(operands.size());
                State[] after = new State[operands.size()];
                for (int operand = 0; operand < after.length; operand++) {
                    after[operand] = states.next(tuples.get(i).get(operand), symbol);
                }
                edges[symbol] = number(after);
            }
            next.add(edges);
        }
        return new Made(automaton(minimised()), states.work());
    }

    private int number(State[] tuple) {
        for (int i = 0; i < included; i++) {
            if (tuple[i].isDead()) {
                return NONE;
            }
        }
        Integer known = numbers.putIfAbsent(Arrays.asList(tuple), tuples.size());
        if (known == null) {
            tuples.add(Arrays.asList(tuple));
            return tuples.size() - 1;
        }
        return known;
    }

    private boolean ends(int state) {
        List<State> tuple = tuples.get(state);
        for (int i = 0; i < tuple.size(); i++) {
            if (tuple.get(i).complete != (i < included)) {
                return false;
            }
        }
        return true;
    }

    /** The automaton of which the states are blocks of equivalent ones. */
    private Expression.Automaton automaton(int[] block) {
        List<Integer> first = new ArrayList<>();
        for (int i = 0; i < block.length; i++) {
            if (block[i] == first.size()) {
                first.add(i);
            }
        }
        Map<BitSet, Expression> characters = new HashMap<>();
        List<Expression.State> all = new ArrayList<>();
        for (int state : first) {
            List<Expression.Step> steps = new ArrayList<>();
            Map<Integer, BitSet> few = new LinkedHashMap<>();
            int[] edges = next.get(state);
            for (int symbol = 0; symbol < edges.length; symbol++) {
                int to = edges[symbol] == NONE ? NONE : block[edges[symbol]];
                if (to != NONE && classes.get(symbol).ranges().size() > FEW_RANGES) {
                    BitSet alone = new BitSet();
                    alone.set(symbol);
                    steps.add(new Expression.Step(characters.computeIfAbsent(alone, this::characters), to));
                } else if (to != NONE) {
                    few.computeIfAbsent(to, _ -> new BitSet()).set(symbol);
                }
            }
            few.forEach((to, symbols) ->
                    steps.add(new Expression.Step(characters.computeIfAbsent(symbols, this::characters), to)));
            all.add(new Expression.State(ends(state), steps));
        }
        return new Expression.Automaton(all.isEmpty() ? List.of(new Expression.State(false, List.of())) : all);
    }

    private Expression characters(BitSet symbols) {
        return new Expression.Chars(CharSet.union(symbols.stream()
                .mapToObj(symbol -> classes.get(symbol).ranges())
                .flatMap(List::stream)
                .toList()));
    }

    /**
     * A number of a block of equivalent states for each state from which a text can be completed. Blocks are numbered in the order of
     * their first states. A block is divided by those of its states that lead to a block which has been divided; its largest part
     * keeps the number, so a state gets a new one few times.
     */
    private int[] minimised() {
        List<List<Integer>> before = before();
        BitSet live = live(before);
        int[] block = new int[tuples.size()];
        Arrays.fill(block, NONE);
        live.stream().forEach(state -> block[state] = 0);
        List<Integer> sizes = new ArrayList<>(List.of(live.cardinality()));
        int work = 0;
        for (BitSet changed = live; !changed.isEmpty(); ) {
            work += changed.cardinality() * classes.size();
            if (work > MOST_REFINEMENT) {
                live.stream().forEach(state -> block[state] = state);
                break;
            }
            Map<Integer, Map<IntBuffer, BitSet>> parts = new LinkedHashMap<>();
            changed.stream()
                    .forEach(state -> parts.computeIfAbsent(block[state], _ -> new LinkedHashMap<>())
                            .computeIfAbsent(edges(state, block), _ -> new BitSet())
                            .set(state));
            BitSet after = new BitSet();
            parts.forEach((number, byEdges) -> {
                for (BitSet part : parts(number, byEdges.values(), sizes.get(number), block)) {
                    part.stream().forEach(state -> {
                        block[state] = sizes.size();
                        before.get(state).forEach(after::set);
                    });
                    sizes.set(number, sizes.get(number) - part.cardinality());
                    sizes.add(part.cardinality());
                }
            });
            after.and(live);
            changed = after;
        }
        Map<Integer, Integer> numbers = new HashMap<>();
        live.stream().forEach(state -> {
            numbers.putIfAbsent(block[state], numbers.size());
            block[state] = numbers.get(block[state]);
        });
        return block;
    }

    /** The parts of a block but the largest one. Its states that are in none of some parts are one, too. */
    private static List<BitSet> parts(int number, Collection<BitSet> some, int size, int[] block) {
        List<BitSet> parts = new ArrayList<>(some);
        BitSet largest = Collections.max(parts, Comparator.comparingInt(BitSet::cardinality));
        int rest = size - parts.stream().mapToInt(BitSet::cardinality).sum();
        if (rest < largest.cardinality()) {
            parts.remove(largest);
            if (rest > 0) {
                BitSet others = new BitSet();
                IntStream.range(0, block.length)
                        .filter(state -> block[state] == number)
                        .forEach(others::set);
                some.forEach(others::andNot);
                parts.add(others);
            }
        }
        return parts;
    }

    /** Where a state leads to, and whether a text may end at it. */
    private IntBuffer edges(int state, int[] block) {
        int[] edges = next.get(state);
        int[] to = new int[edges.length + 1];
        to[edges.length] = ends(state) ? 1 : 0;
        for (int symbol = 0; symbol < edges.length; symbol++) {
            to[symbol] = edges[symbol] == NONE ? NONE : block[edges[symbol]];
        }
        return IntBuffer.wrap(to);
    }

    /** The states that lead to each. */
    private List<List<Integer>> before() {
        List<List<Integer>> before = new ArrayList<>();
        next.forEach(_ -> before.add(new ArrayList<>()));
        for (int i = 0; i < next.size(); i++) {
            int last = NONE;
            for (int edge : next.get(i)) {
                if (edge != NONE && edge != last) {
                    before.get(edge).add(i);
                    last = edge;
                }
            }
        }
        return before;
    }

    /** The states from which a text can be completed. */
    private BitSet live(List<List<Integer>> before) {
        BitSet live = new BitSet();
        List<Integer> open = new ArrayList<>();
        for (int i = 0; i < next.size(); i++) {
            if (ends(i)) {
                live.set(i);
                open.add(i);
            }
        }
        while (!open.isEmpty()) {
            for (int earlier : before.get(open.removeLast())) {
                if (!live.get(earlier)) {
                    live.set(earlier);
                    open.add(earlier);
                }
            }
        }
        return live;
    }
}
