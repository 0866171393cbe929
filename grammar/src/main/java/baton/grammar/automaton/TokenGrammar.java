package baton.grammar.automaton;

import baton.kv.ConfigException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A grammar over the tokens of a vocabulary. States and masks are kept until they take too much memory, and then made anew. Any thread
 * may use it.
 */
@SuppressWarnings("ReferenceEquality") // equal states of one automaton are the same object
public final class TokenGrammar {
    private static final long MOST_BYTES = 64L << 20;
    private static final long MOST_WORK = 4_000_000;

    /** The limit of upper parts for which masks are found one by one. */
    private static final int MOST_PARTS = 8;

    private final Grammar grammar;
    private final TokenVocabulary vocabulary;

    /** The token ids of the grammar's special tokens. */
    private final int[] specials;

    @GuardedBy("this")
    private States states;

    private volatile long bytes;

    /** @throws ConfigException if the vocabulary lacks a special token of the grammar */
    public TokenGrammar(Grammar grammar, TokenVocabulary vocabulary) {
        this.grammar = grammar;
        this.vocabulary = vocabulary;
        specials = new int[grammar.specials().size()];
        for (int i = 0; i < specials.length; i++) {
            String content = grammar.specials().get(i);
            Integer id = vocabulary.specialTokens().get(content);
            if (id == null) {
                throw new ConfigException("grammar", "the vocabulary has no special token '" + content + "'");
            }
            specials[i] = id;
        }
        states = grammar.states();
        bytes = grammar.bytes() + states.bytes();
    }

    /** The matcher of a sequence that has no token. */
    public synchronized TokenMatcher matcher() {
        states.allowWork(MOST_WORK);
        return new TokenMatcher(this, states, states.start(grammar.start()));
    }

    /** How much memory it took after the last operation, about. Does not wait for one that is going on. */
    public long bytes() {
        return bytes;
    }

    /** Prepares work at a state, which may be one of states that have been given up. */
    @GuardedBy("this")
    private State current(TokenMatcher matcher) {
        if (states.bytes() > MOST_BYTES) {
            states = grammar.states();
        }
        states.allowWork(MOST_WORK);
        if (matcher.states != states) {
            matcher.state = adopt(matcher.state, new IdentityHashMap<>());
            matcher.states = states;
        }
        return matcher.state;
    }

    @GuardedBy("this")
    private State adopt(State other, Map<State, State> known) {
        State adopted = known.get(other);
        if (adopted == null) {
            adopted = other.complete ? states.end : states.dead;
            for (int i = 0; i < other.places.length; i++) {
                State below = adopt(other.below[i], known);
                adopted = states.union(List.of(adopted, states.push(states.adopt(other.places[i]), below)));
            }
            known.put(other, adopted);
        }
        return adopted;
    }

    /** Writes the tokens that may come next. */
    synchronized void allow(TokenMatcher matcher, long[] mask) {
        State state = current(matcher);
        TokenSet allowed = state.allowed;
        if (allowed == null) {
            long[] bits = new long[vocabulary.words()];
            addTokens(state, bits);
            for (int i = 0; i < specials.length; i++) {
                if (!states.afterSpecial(state, i).isDead()) {
                    set(bits, specials[i]);
                }
            }
            if (state.complete) {
                vocabulary.endTokens().forEach(id -> set(bits, id));
            }
            allowed = TokenSet.of(bits);
            state.allowed = allowed;
            states.addBytes(allowed.bytes());
            bytes = grammar.bytes() + states.bytes();
        }
        allowed.writeTo(mask);
    }

    private static void set(long[] mask, int token) {
        mask[token >> 6] |= 1L << token;
    }

    /** Moves on by a token, if it may come next. */
    synchronized boolean accept(TokenMatcher matcher, int token) {
        State state = current(matcher);
        for (int i = 0; i < specials.length; i++) {
            if (specials[i] == token) {
                State after = states.afterSpecial(state, i);
                if (!after.isDead()) {
                    matcher.state = after;
                    return true;
                }
            }
        }
        if (vocabulary.endTokens().contains(token)) {
            return state.complete;
        }
        if (token < 0 || token >= vocabulary.size() || vocabulary.bytes(token).length == 0) {
            return false;
        }
        for (byte value : vocabulary.bytes(token)) {
            state = states.afterByte(state, value);
        }
        if (state.isDead()) {
            return false;
        }
        matcher.state = state;
        return true;
    }

    /**
     * Adds the tokens of bytes that may come next. Stacks are divided below a place with a clear end of its texts. Tokens that stay
     * above are known from the upper part alone. Tokens that leave it go on with the lower part.
     */
    @GuardedBy("this")
    private void addTokens(State state, long[] mask) {
        Map<State, List<State>> upperByLower = new LinkedHashMap<>();
        for (int i = 0; i < state.places.length && upperByLower.size() <= MOST_PARTS; i++) {
            List<Place> upper = new ArrayList<>();
            upper.add(state.places[i]);
            State lower = state.below[i];
            while (!upper.getLast().key.node().delimited && lower.places.length == 1 && !lower.complete) {
                upper.add(lower.places[0]);
                lower = lower.below[0];
            }
            State part = upper.getLast().key.node().delimited ? states.end : lower;
            for (Place place : upper.reversed()) {
                part = states.push(clipped(place), part);
            }
            lower = upper.getLast().key.node().delimited ? lower : states.end;
            upperByLower.computeIfAbsent(lower, _ -> new ArrayList<>()).add(part);
        }
        if (upperByLower.size() > MOST_PARTS) {
            new Walk(states, state, mask).all();
            return;
        }
        upperByLower.forEach((lower, uppers) -> {
            LocalTokens local = local(states.union(uppers));
            local.within().addTo(mask);
            if (lower != states.end) {
                new Walk(states, lower, mask).below(local.exits());
            }
        });
    }

    /** A place after which the same texts come, as far as a token reaches. */
    @GuardedBy("this")
    private Place clipped(Place place) {
        if (place.key.node() instanceof Node.Graph graph) {
            int came = (int) place.key.at();
            int same = graph.equivalent(came, vocabulary.deepest);
            return same == came ? place : states.inGraph(graph, (int) (place.key.at() >>> 32), same).places[0];
        }
        if (!(place.key.node() instanceof Node.Sequence sequence)) {
            return place;
        }
        int index = (int) (place.key.at() >>> 32);
        int count = (int) place.key.at();
        int least = sequence.least[index];
        if ((long) sequence.most[index] - count <= vocabulary.deepest) {
            return place;
        }
        int equivalent = count >= least ? least : least - count > vocabulary.deepest ? 0 : count;
        return equivalent == count ? place : states.inSequence(sequence, index, equivalent).places[0];
    }

    @GuardedBy("this")
    private LocalTokens local(State upper) {
        LocalTokens local = upper.local;
        if (local == null) {
            long[] bits = new long[vocabulary.words()];
            Walk walk = new Walk(states, upper, bits);
            if (!walk.loop()) {
                walk.all();
            }
            local = new LocalTokens(TokenSet.of(bits), Arrays.copyOf(walk.exits, walk.exitCount));
            upper.local = local;
            states.addBytes(local.bytes());
        }
        return local;
    }

    /** A walk over the vocabulary's tree, with the state of the automaton at each node. */
    private final class Walk {
        private final States states;
        private final State[] path = new State[vocabulary.deepest + 1];
        private final State start;
        private final long[] mask;
        private int[] exits = new int[16];
        private int exitCount;

        Walk(States states, State start, long[] mask) {
            this.states = states;
            this.start = start;
            this.mask = mask;
        }

        /** Walks over the whole tree, from the root. */
        void all() {
            path[0] = start;
            walk(1, vocabulary.end[0]);
        }

        /** Walks over the nodes below each of some nodes. The walk begins anew at each of these. */
        void below(int[] nodes) {
            for (int node : nodes) {
                path[vocabulary.depth[node]] = start;
                walk(node + 1, vocabulary.end[node]);
            }
        }

        /** Finds the tokens by the repetition at which the state is, if it is at one that bytes leave clearly. */
        boolean loop() {
            if (start.complete
                    || start.places.length != 1
                    || start.below[0] != states.end
                    || !(start.places[0].key.node() instanceof Node.Sequence sequence)) {
                return false;
            }
            int index = (int) (start.places[0].key.at() >>> 32);
            int count = (int) start.places[0].key.at();
            Node repeated = sequence.parts.get(index);
            State rest = states.inSequence(sequence, index + 1, 0);
            if (sequence.most[index] - count < 2 || repeated.nullable || rest.complete || !disjoint(repeated, rest)) {
                return false;
            }
            Optional<LoopTokens> known = vocabulary.loop(repeated, () -> new LoopWalk(states, repeated).tokens());
            if (known.isEmpty()) {
                return false;
            }
            LoopTokens loop = known.get();
            int most = sequence.most[index] == Integer.MAX_VALUE ? Integer.MAX_VALUE - 1 : sequence.most[index] - count;
            loop.addTo(mask, most);
            for (int i = 0; i < loop.exits().length; i++) {
                int came = loop.cameBefore()[i];
                if (came <= most && count + (long) came >= sequence.least[index]) {
                    int node = loop.exits()[i];
                    path[vocabulary.depth[node] - 1] = rest;
                    walk(node, vocabulary.end[node]);
                }
            }
            return true;
        }

        private boolean disjoint(Node repeated, State rest) {
            for (int symbol = 0; symbol < states.classes().count(); symbol++) {
                if (!states.next(rest, symbol).isDead()
                        && !states.next(states.start(repeated), symbol).isDead()) {
                    return false;
                }
            }
            return true;
        }

        private void walk(int from, int to) {
            byte[] label = vocabulary.label;
            int[] depth = vocabulary.depth;
            int[] end = vocabulary.end;
            Symbols classes = states.classes();
            for (int node = from; node < to; ) {
                int at = depth[node];
                State after = states.next(path[at - 1], classes.of(label[node]));
                if (after.isDead()) {
                    node = end[node];
                    continue;
                }
                path[at] = after;
                vocabulary.addTokens(node, mask);
                if (after.complete && end[node] > node + 1) {
                    if (exitCount == exits.length) {
                        exits = Arrays.copyOf(exits, 2 * exitCount);
                    }
                    exits[exitCount++] = node;
                }
                node++;
            }
        }
    }

    /** A walk over the vocabulary's tree by a repetition without bounds. */
    private final class LoopWalk {
        private final States states;
        private final State whole;

        LoopWalk(States states, Node repeated) {
            this.states = states;
            whole = states.start(new Node.Sequence(List.of(repeated), new int[] {0}, new int[] {Integer.MAX_VALUE}));
        }

        /** The tokens, if it is always clear how many times the expression came. */
        Optional<LoopTokens> tokens() {
            LoopTokens.Builder tokens = new LoopTokens.Builder(vocabulary.words());
            State[] path = new State[vocabulary.deepest + 1];
            int[] came = new int[vocabulary.deepest + 1];
            path[0] = whole;
            for (int node = 1; node < vocabulary.end[0]; ) {
                int at = vocabulary.depth[node];
                State before = path[at - 1];
                State after = states.next(before, states.classes().of(vocabulary.label[node]));
                if (after.isDead()) {
                    if (before == whole) {
                        tokens.exit(node, came[at - 1]);
                    }
                    node = vocabulary.end[node];
                    continue;
                }
                if (after.complete && after != whole) {
                    return Optional.empty();
                }
                path[at] = after;
                came[at] = came[at - 1] + (after == whole ? 1 : 0);
                tokens.add(vocabulary, node, after == whole ? came[at] : came[at] + 1);
                node++;
            }
            return Optional.of(tokens.build());
        }
    }
}
