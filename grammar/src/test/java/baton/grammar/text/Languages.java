package baton.grammar.text;

import static org.assertj.core.api.Assertions.assertThat;

import baton.grammar.automaton.Grammar;
import baton.grammar.rule.GrammarSource;
import baton.grammar.rule.Texts;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Checks texts by the definition of grammars and by the automaton. */
final class Languages {
    private Languages() {}

    static void check(String name, GrammarSource source, List<String> valid, List<String> invalid) {
        Grammar grammar = Grammar.compile(source);
        valid.forEach(text -> check(name, source, grammar, text, true));
        invalid.forEach(text -> check(name, source, grammar, text, false));
    }

    private static void check(String name, GrammarSource source, Grammar grammar, String text, boolean expected) {
        assertThat(Texts.has(source, text)).as("'%s' of %s", text, name).isEqualTo(expected);
        // Tests write special tokens with halves of surrogate pairs, which are in no text.
        if (!text.contains("\uD800")) {
            assertThat(grammar.accepts(text.getBytes(StandardCharsets.UTF_8)))
                    .as("automaton: '%s' of %s", text, name)
                    .isEqualTo(expected);
        }
    }
}
