/** Predicts what fleets of instances serve within goals, from a measured profile of a machine. */
@NullMarked
package baton.bench.plan;

import org.jspecify.annotations.NullMarked;
