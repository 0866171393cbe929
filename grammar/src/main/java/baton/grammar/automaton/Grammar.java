package baton.grammar.automaton;

import baton.grammar.rule.GrammarSource;
import java.util.List;

/** A compiled grammar. */
public final class Grammar {
    private static final long MOST_WORK = 50_000_000;

    private final Node start;
    private final Symbols classes;
    private final List<String> specials;
    private final long bytes;

    private Grammar(Node start, Symbols classes, List<String> specials, long bytes) {
        this.start = start;
        this.classes = classes;
        this.specials = specials;
        this.bytes = bytes;
    }

    /** @throws baton.kv.ConfigException if no text is of it, or a bound is exceeded, which the message names */
    public static Grammar compile(GrammarSource source) {
        GrammarCompiler compiler = new GrammarCompiler(source);
        Node start = compiler.compile();
        long bytes = compiler.nodes().stream().mapToLong(Node::bytes).sum();
        return new Grammar(start, Symbols.of(compiler.nodes()), compiler.specials(), bytes);
    }

    /** Whether a text without special tokens, in UTF-8, is of the grammar. */
    public boolean accepts(byte[] text) {
        States states = states();
        states.allowWork(MOST_WORK);
        State state = states.start(start);
        for (byte value : text) {
            state = states.afterByte(state, value);
        }
        return state.complete;
    }

    /** How much memory its nodes take, about. */
    long bytes() {
        return bytes;
    }

    /** The contents of its special tokens, by their numbers. */
    List<String> specials() {
        return specials;
    }

    States states() {
        return new States(classes, specials.size());
    }

    Node start() {
        return start;
    }
}
