package baton.grammar.automaton;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.SequencedSet;
import java.util.function.Supplier;

/** Makes nodes of expressions. */
final class GrammarCompiler {
    private static final int MOST_NODES = 60_000;

    /** Most steps of all intersections and complements. */
    private static final long MOST_PRODUCT_WORK = 300_000;

    /** Deepest nesting of expressions. */
    private static final int MOST_DEPTH = 400;

    private final GrammarSource source;
    private final IdentityHashMap<Expression, Node> compiled = new IdentityHashMap<>();
    private final Map<Object, Node> interned = new HashMap<>();
    private final Map<String, Node.Reference> rules = new LinkedHashMap<>();
    private final Map<String, Integer> specials = new LinkedHashMap<>();
    private final SequencedSet<Node.Reference> undefined = new LinkedHashSet<>();
    private final List<Node> nodes = new ArrayList<>();

    /** Compiles operands of intersections and complements, to nodes over characters instead of bytes. */
    private final GrammarCompiler operands;

    private long productWork = MOST_PRODUCT_WORK;
    private int depth;

    GrammarCompiler(GrammarSource source) {
        this.source = source;
        this.operands = new GrammarCompiler(source, MOST_PRODUCT_WORK);
    }

    private GrammarCompiler(GrammarSource source, long mostWork) {
        this.source = source;
        this.operands = this;
        this.productWork = mostWork;
    }

    /**
     * The automaton of a regular expression's characters.
     *
     * @throws ConfigException if it takes more than so many steps
     */
    static RegularProduct.Made automaton(Expression regular, long mostWork) {
        GrammarCompiler compiler = new GrammarCompiler(GrammarSource.of(regular), mostWork);
        RegularProduct.Made made = compiler.product(List.of(regular));
        // Products within operands count, too.
        return new RegularProduct.Made(made.automaton(), mostWork - compiler.productWork);
    }

    /** All nodes, each after those it is made of, except in recursion. */
    List<Node> nodes() {
        return nodes;
    }

    /** Contents of special tokens in the order of their numbers. */
    List<String> specials() {
        return List.copyOf(specials.keySet());
    }

    Node compile() {
        Node start = node(source.start());
        while (!undefined.isEmpty()) {
            define(undefined.getFirst());
        }
        evaluate();
        if (!start.productive) {
            throw new ConfigException("grammar", "no text satisfies it");
        }
        if (LeftRecursion.remove(nodes, this::add)) {
            evaluate();
            boolean isLeft = LeftRecursion.remove(nodes, this::add);
            require(!isLeft, "a rule begins with itself (left recursion)");
        }
        return start;
    }

    private void define(Node.Reference rule) {
        undefined.remove(rule);
        Expression body = source.rules().get(rule.name);
        if (body == null) {
            throw new IllegalArgumentException("rule " + rule.name + " is missing");
        }
        rule.define(node(body));
    }

    /** Evaluates nodes until none changes. When they were made only the rules had yet to be defined. */
    private void evaluate() {
        List<List<Node>> users = new ArrayList<>();
        nodes.forEach(_ -> users.add(new ArrayList<>()));
        for (Node node : nodes) {
            for (Node part : node.parts) {
                users.get(part.id).add(node);
            }
        }
        Deque<Node> changed = new ArrayDeque<>();
        for (Node node : nodes) {
            if (node instanceof Node.Reference) {
                changed.add(node);
            }
        }
        while (!changed.isEmpty()) {
            Node node = changed.removeFirst();
            boolean productive = node.productive;
            boolean nullable = node.nullable;
            node.evaluate();
            if (productive != node.productive || nullable != node.nullable) {
                changed.addAll(users.get(node.id));
            }
        }
    }

    private Node node(Expression expression) {
        Node known = compiled.get(expression);
        if (known != null) {
            return known;
        }
        require(++depth <= MOST_DEPTH, "expressions are nested more than " + MOST_DEPTH + " deep");
        Node made = make(expression);
        depth--;
        compiled.put(expression, made);
        return made;
    }

    private Node make(Expression expression) {
        return switch (expression) {
            case Expression.Text(String text) -> text(text);
            case Expression.Chars(CharSet set) -> characters(set);
            case Expression.SpecialToken(String content) ->
                intern(List.of("special", content), () -> {
                    specials.putIfAbsent(content, specials.size());
                    return new Node.Special(specials.get(content));
                });
            case Expression.Rule(String name) -> reference(name);
            case Expression.Repeat _ -> sequence(List.of(expression));
            case Expression.Sequence(List<Expression> parts) -> sequence(parts);
            case Expression.Choice(List<Expression> parts) -> alternatives(nodes(parts));
            case Expression.And(List<Expression> parts) ->
                add(graph(operands.product(parts).automaton()));
            case Expression.Not _ ->
                add(graph(operands.product(List.of(expression)).automaton()));
            case Expression.Automaton automaton -> add(graph(automaton));
            case Expression.Members(
                    List<Expression.Member> members,
                    boolean anyOrder,
                    Expression separator,
                    Expression others,
                    int least,
                    int most) -> members(members, anyOrder, node(separator), node(others), least, most);
        };
    }

    private List<Node> nodes(List<Expression> expressions) {
        List<Node> made = new ArrayList<>();
        for (Expression expression : expressions) {
            made.add(node(expression));
        }
        return made;
    }

    private Node text(String text) {
        if (!text.codePoints().allMatch(CharSet.ALL::contains)) {
            // Half of a surrogate pair is in no text.
            return characters(CharSet.NONE);
        }
        if (isOfCharacters()) {
            return sequence(text.codePoints()
                    .<Expression>mapToObj(point -> new Expression.Chars(CharSet.of(point)))
                    .toList());
        }
        return intern(List.of("literal", text), () -> new Node.Literal(text.getBytes(StandardCharsets.UTF_8)));
    }

    @SuppressWarnings("ReferenceEquality") // a compiler of operands is its own
    private boolean isOfCharacters() {
        return operands == this;
    }

    private Node characters(CharSet set) {
        return intern(List.of("characters", set), () -> new Node.Characters(set, !isOfCharacters()));
    }

    private Node alternatives(List<Node> parts) {
        return parts.size() == 1
                ? parts.getFirst()
                : intern(List.of("alternatives", parts), () -> new Node.Alternatives(parts));
    }

    /** Repetitions of one expression are parts of the sequence with bounds. */
    private Node sequence(List<Expression> all) {
        List<Expression> expressions =
                all.stream().filter(part -> !part.equals(Expression.empty())).toList();
        if (expressions.size() == 1 && !(expressions.getFirst() instanceof Expression.Repeat)) {
            return node(expressions.getFirst());
        }
        List<Node> parts = new ArrayList<>();
        int[] least = new int[expressions.size()];
        int[] most = new int[expressions.size()];
        for (int i = 0; i < least.length; i++) {
            if (expressions.get(i) instanceof Expression.Repeat(Expression repeated, int fewest, int greatest)) {
                parts.add(node(repeated));
                least[i] = fewest;
                most[i] = greatest;
            } else {
                parts.add(node(expressions.get(i)));
                least[i] = 1;
                most[i] = 1;
            }
        }
        List<Object> key = List.of(
                "sequence",
                parts,
                Arrays.stream(least).boxed().toList(),
                Arrays.stream(most).boxed().toList());
        return intern(key, () -> new Node.Sequence(List.copyOf(parts), least, most));
    }

    private Node reference(String name) {
        return rules.computeIfAbsent(name, _ -> {
            Node.Reference rule = add(new Node.Reference(name));
            undefined.add(rule);
            return rule;
        });
    }

    private Node.Graph graph(Expression.Automaton automaton) {
        List<List<Node>> steps = new ArrayList<>();
        int[][] next = new int[automaton.states().size()][];
        boolean[] ends = new boolean[next.length];
        for (int i = 0; i < next.length; i++) {
            Expression.State state = automaton.states().get(i);
            steps.add(nodes(state.steps().stream().map(Expression.Step::text).toList()));
            next[i] = state.steps().stream().mapToInt(Expression.Step::next).toArray();
            ends[i] = state.ends();
        }
        return new Node.Graph(steps, next, ends, automaton.least(), automaton.most());
    }

    private Node members(
            List<Expression.Member> members, boolean anyOrder, Node separator, Node others, int least, int most) {
        boolean[] required = new boolean[members.size()];
        List<Node> texts = new ArrayList<>();
        for (int i = 0; i < required.length; i++) {
            required[i] = members.get(i).required();
            texts.add(node(members.get(i).text()));
        }
        return add(new Node.Members(texts, required, anyOrder, separator, others, least, most));
    }

    /** Texts of all parts; those that are complements exclude. */
    private RegularProduct.Made product(List<Expression> parts) {
        List<Node> included = new ArrayList<>();
        List<Node> excluded = new ArrayList<>();
        addOperands(parts, included, excluded);
        if (included.isEmpty()) {
            included.add(node(Expression.any()));
        }
        IdentityHashMap<Node, Boolean> settled = new IdentityHashMap<>();
        included.forEach(operand -> settle(operand, settled));
        excluded.forEach(operand -> settle(operand, settled));
        RegularProduct.Made made = RegularProduct.of(included, excluded, settled.keySet(), productWork);
        productWork -= made.work();
        return made;
    }

    private void addOperands(List<Expression> parts, List<Node> included, List<Node> excluded) {
        for (Expression part : parts) {
            switch (part) {
                case Expression.And(List<Expression> inner) -> addOperands(inner, included, excluded);
                case Expression.Not(Expression inner) -> excluded.add(node(inner));
                default -> included.add(node(part));
            }
        }
    }

    /**
     * Evaluates a regular node and all that it is made of.
     *
     * @param settled whether each has been evaluated; those on the way to it have not
     */
    private void settle(Node node, IdentityHashMap<Node, Boolean> settled) {
        Boolean known = settled.putIfAbsent(node, false);
        if (known != null) {
            require(known, "an operand of an intersection or complement must not be recursive");
            return;
        }
        require(
                !(node instanceof Node.Special),
                "an operand of an intersection or complement must have no special token");
        require(++depth <= MOST_DEPTH, "expressions are nested more than " + MOST_DEPTH + " deep");
        if (node instanceof Node.Reference rule && undefined.contains(rule)) {
            define(rule);
        }
        for (Node part : node.parts) {
            settle(part, settled);
        }
        node.evaluate();
        settled.put(node, true);
        depth--;
    }

    private static void require(boolean holds, String message) {
        if (!holds) {
            throw new ConfigException("grammar", message);
        }
    }

    private Node intern(Object key, Supplier<Node> make) {
        Node known = interned.get(key);
        if (known == null) {
            known = add(make.get());
            interned.put(key, known);
        }
        return known;
    }

    private <N extends Node> N add(N node) {
        require(nodes.size() < MOST_NODES, "has more than " + MOST_NODES + " expressions");
        node.id = nodes.size();
        nodes.add(node);
        node.evaluate();
        return node;
    }
}
