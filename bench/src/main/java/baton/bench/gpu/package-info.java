/** A check of a GPU: one report of everything that Baton runs on it. */
@NullMarked
package baton.bench.gpu;

import org.jspecify.annotations.NullMarked;
