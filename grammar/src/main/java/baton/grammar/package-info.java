/** The formats that a client may ask of an output, and their grammars. */
@NullMarked
package baton.grammar;

import org.jspecify.annotations.NullMarked;
