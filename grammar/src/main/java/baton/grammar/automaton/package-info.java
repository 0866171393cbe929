/** Compiled grammars: pushdown automata over bytes and special tokens, and the masks of a vocabulary by them. */
@NullMarked
package baton.grammar.automaton;

import org.jspecify.annotations.NullMarked;
