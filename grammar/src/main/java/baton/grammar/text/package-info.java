/** Formats that clients write as grammars, EBNF or Lark, and as structural tags. */
@NullMarked
package baton.grammar.text;

import org.jspecify.annotations.NullMarked;
