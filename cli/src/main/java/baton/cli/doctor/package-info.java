/** What a machine has, what Baton chooses on it, and what to change. */
@NullMarked
package baton.cli.doctor;

import org.jspecify.annotations.NullMarked;
