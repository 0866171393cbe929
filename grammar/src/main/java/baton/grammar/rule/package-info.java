/** Context-free grammars whose terminals are regular: the form between the languages that clients write and the automaton. */
@NullMarked
package baton.grammar.rule;

import org.jspecify.annotations.NullMarked;
