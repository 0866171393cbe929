/** Divides the text of a sequence, while it comes, into reasoning, content and calls of tools. */
@NullMarked
package baton.server.output;

import org.jspecify.annotations.NullMarked;
