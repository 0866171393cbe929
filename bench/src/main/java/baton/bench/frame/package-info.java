/** Parts of all measurements: cases in turns, budgets, the machine, and figures as JSON with layouts that show them. */
@NullMarked
package baton.bench.frame;

import org.jspecify.annotations.NullMarked;
