/** The commands of {@code ./baton}. */
@NullMarked
package baton.cli;

import org.jspecify.annotations.NullMarked;
