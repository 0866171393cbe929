/** Predicts the goodput of fleets of instances within goals, from a measured profile of a machine. */
@NullMarked
package baton.bench.plan;

import org.jspecify.annotations.NullMarked;
