/** The report of {@code baton doctor}: the machine, Baton's choices on it, and changes that would help. */
@NullMarked
package baton.cli.doctor;

import org.jspecify.annotations.NullMarked;
