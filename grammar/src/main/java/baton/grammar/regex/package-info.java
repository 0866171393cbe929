/** Regular expressions of clients, as expressions of grammars. */
@NullMarked
package baton.grammar.regex;

import org.jspecify.annotations.NullMarked;
