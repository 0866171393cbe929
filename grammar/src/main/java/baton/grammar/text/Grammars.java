package baton.grammar.text;

import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;

/** Reads grammars that clients write as text. */
public final class Grammars {
    private Grammars() {}

    /**
     * The grammar of a text in xgrammar's EBNF, or in Lark where no line outside of comments has {@code ::=}, as vLLM decides.
     *
     * @throws ConfigException of the field {@code grammar}; its message has the line and the column
     */
    public static GrammarSource source(String text) {
        if (text.isBlank()) {
            throw new ConfigException(
                    "grammar", "is empty, must be a grammar in EBNF (root ::= ...) or Lark (start: ...)");
        }
        return isLark(text) ? new LarkReader(text).read() : new EbnfReader(text).read();
    }

    private static boolean isLark(String text) {
        return text.lines().noneMatch(line -> line.replaceAll("(#|//).*", "").contains("::="));
    }
}
