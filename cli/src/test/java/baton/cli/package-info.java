/** Tests of the program: its processes, run for real. */
@NullMarked
package baton.cli;

import org.jspecify.annotations.NullMarked;
