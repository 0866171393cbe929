/** Context-free grammars with regular terminals: the form between the languages that clients write and the automaton. */
@NullMarked
package baton.grammar.rule;

import org.jspecify.annotations.NullMarked;
