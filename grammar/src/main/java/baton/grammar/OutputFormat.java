package baton.grammar;

import baton.grammar.rule.GrammarSource;

/** The format of an output. Equal formats have the same grammar, so a format is the key of compiled grammars. */
public sealed interface OutputFormat {
    /**
     * The grammar of the format.
     *
     * @throws baton.kv.ConfigException naming the part that has no grammar
     */
    GrammarSource source();

    /** A grammar that is given. */
    record Rules(GrammarSource source) implements OutputFormat {}
}
