package baton.grammar.automaton;

import baton.kv.ConfigException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

/**
 * Replaces rules that begin with themselves by ones with the same texts that do not.
 *
 * <p>A text of such a rule begins with a text of no such rule. It goes on with the text that follows a rule within another. A rule's body
 * becomes these beginnings, each with the continuations that lead from the rule it belongs to.
 */
final class LeftRecursion {
    private static final int MOST_DEPTH = 2_000;

    /** Longest chain of nodes that begin with each other where no rule begins with itself. */
    private static final int MOST_CHAIN = 400;

    private static final int MOST_RULES = 60;

    /** A text of a rule, not empty, and then a text of {@code rest}: such a text is of {@code whole}. */
    private record Left(Node.Reference whole, Node.Reference first, Node rest) {}

    private record Continuation(Node.Reference from, Node.Reference to) {}

    private final Consumer<Node> add;
    /** The order of nodes by their numbers: 0 before the visit, {@link Integer#MAX_VALUE} after that of the circle. */
    private int[] order;

    /** The longest chain, from each node, of nodes that begin with each other, by their numbers; 0 before the node's visit ends. */
    private int[] longest;

    private final Deque<Node> open = new ArrayDeque<>();
    private int visited;
    private int depth;
    private boolean hasReplaced;

    private Set<Node> circle = Set.of();
    private final Map<Node.Reference, List<Node>> beginnings = new HashMap<>();
    private final List<Left> lefts = new ArrayList<>();
    private final Map<Continuation, Node.Reference> continuations = new HashMap<>();

    private LeftRecursion(int nodes, Consumer<Node> add) {
        order = new int[nodes];
        longest = new int[nodes];
        this.add = add;
    }

    /**
     * Replaces them.
     *
     * @param add takes a new node
     * @return whether there was one
     * @throws ConfigException if the chain of nodes that begin with each other is too long
     */
    static boolean remove(List<Node> nodes, Consumer<Node> add) {
        LeftRecursion recursion = new LeftRecursion(nodes.size(), add);
        for (Node node : List.copyOf(nodes)) {
            if (recursion.order(node) == 0) {
                recursion.visit(node);
            }
        }
        if (!recursion.hasReplaced) {
            requireAtMost(MOST_CHAIN, Arrays.stream(recursion.longest).max().orElse(0));
        }
        return recursion.hasReplaced;
    }

    private int order(Node node) {
        return node.id < order.length ? order[node.id] : 0;
    }

    /** Tarjan's algorithm: finds the circles of nodes that begin with each other. */
    private int visit(Node node) {
        requireAtMost(MOST_DEPTH, ++depth);
        int number = ++visited;
        if (node.id >= order.length) {
            order = Arrays.copyOf(order, 2 * node.id);
            longest = Arrays.copyOf(longest, 2 * node.id);
        }
        order[node.id] = number;
        open.add(node);
        int low = number;
        boolean itself = false;
        int below = 0;
        for (Node first : node.firstParts()) {
            itself |= first == node;
            low = Math.min(low, order(first) == 0 ? visit(first) : order(first));
            below = Math.max(below, longest[first.id]);
        }
        longest[node.id] = below + 1;
        depth--;
        if (low == number) {
            Set<Node> found = new LinkedHashSet<>();
            Node last;
            do {
                last = open.removeLast();
                order[last.id] = Integer.MAX_VALUE;
                found.add(last);
            } while (last != node);
            if (found.size() > 1 || itself) {
                replace(found);
            }
        }
        return low;
    }

    private static void requireAtMost(int most, int depth) {
        if (depth > most) {
            throw new ConfigException("grammar", "more than " + most + " expressions begin with each other");
        }
    }

    private void replace(Set<Node> found) {
        hasReplaced = true;
        circle = found;
        beginnings.clear();
        lefts.clear();
        continuations.clear();
        List<Node.Reference> rules = new ArrayList<>();
        for (Node node : found) {
            if (node instanceof Node.Reference rule) {
                rules.add(rule);
            }
        }
        if (rules.size() > MOST_RULES) {
            throw new ConfigException(
                    "grammar", "more than " + MOST_RULES + " rules begin with each other (left recursion)");
        }
        for (Node.Reference rule : rules) {
            divide(rule, rule.parts.getFirst(), empty());
        }
        Map<Node.Reference, Node> bodies = new HashMap<>();
        for (Node.Reference rule : rules) {
            List<Node> alternatives = new ArrayList<>();
            for (Node.Reference origin : rules) {
                for (Node beginning : beginnings.getOrDefault(origin, List.of())) {
                    alternatives.add(sequence(beginning, continuation(new Continuation(origin, rule))));
                }
            }
            if (rule.nullable) {
                alternatives.add(empty());
            }
            bodies.put(rule, added(new Node.Alternatives(alternatives)));
        }
        bodies.forEach(Node.Reference::define);
    }

    /** Divides the texts of a node with {@code rest} after it, except where the node's text is empty, by their beginnings. */
    private void divide(Node.Reference rule, Node node, Node rest) {
        if (!node.productive) {
            return;
        }
        if (!circle.contains(node)) {
            beginnings.computeIfAbsent(rule, _ -> new ArrayList<>()).add(sequence(nonempty(node), rest));
            return;
        }
        switch (node) {
            case Node.Reference first -> lefts.add(new Left(rule, first, rest));
            case Node.Alternatives alternatives -> alternatives.parts.forEach(part -> divide(rule, part, rest));
            case Node.Nonempty part -> divide(rule, part.part, rest);
            case Node.Sequence sequence -> {
                boolean reached = true;
                for (int i = 0; i < sequence.most.length && reached; i++) {
                    if (sequence.most[i] > 0) {
                        divide(rule, sequence.parts.get(i), sequence(after(sequence, i), rest));
                    }
                    reached = sequence.least[i] == 0 || sequence.parts.get(i).nullable;
                }
            }
            default ->
                throw new ConfigException("grammar", "a rule begins with itself within members (left recursion)");
        }
    }

    /** A sequence after a part of it came once. */
    private Node after(Node.Sequence sequence, int index) {
        int size = sequence.most.length;
        int[] least = Arrays.copyOfRange(sequence.least, index, size);
        int[] most = Arrays.copyOfRange(sequence.most, index, size);
        least[0] = Math.max(least[0] - 1, 0);
        most[0] = most[0] == Integer.MAX_VALUE ? most[0] : most[0] - 1;
        return added(new Node.Sequence(sequence.parts.subList(index, size), least, most));
    }

    /** The rule of texts that make a text of one rule a text of another, when they follow it. */
    private Node continuation(Continuation key) {
        Node.Reference known = continuations.get(key);
        if (known != null) {
            return known;
        }
        Node.Reference made = new Node.Reference(key.from.name + " in " + key.to.name);
        add.accept(made);
        continuations.put(key, made);
        Set<Node.Reference> same = new LinkedHashSet<>(List.of(key.from));
        Deque<Node.Reference> reached = new ArrayDeque<>(same);
        List<Node> alternatives = new ArrayList<>();
        while (!reached.isEmpty()) {
            Node.Reference from = reached.pop();
            for (Left left : lefts) {
                if (left.first == from) {
                    if (left.rest.nullable && same.add(left.whole)) {
                        reached.push(left.whole);
                    }
                    alternatives.add(sequence(nonempty(left.rest), continuation(new Continuation(left.whole, key.to))));
                }
            }
        }
        if (same.contains(key.to)) {
            alternatives.add(empty());
        }
        made.define(added(new Node.Alternatives(alternatives)));
        return made;
    }

    private Node added(Node node) {
        add.accept(node);
        return node;
    }

    private Node empty() {
        return sequence();
    }

    private Node nonempty(Node node) {
        return node.nullable ? added(new Node.Nonempty(node)) : node;
    }

    private Node sequence(Node... parts) {
        int[] once = new int[parts.length];
        Arrays.fill(once, 1);
        return added(new Node.Sequence(List.of(parts), once, once));
    }
}
