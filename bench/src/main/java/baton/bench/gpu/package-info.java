/** What a GPU does: one report of everything that Baton runs on it. */
@NullMarked
package baton.bench.gpu;

import org.jspecify.annotations.NullMarked;
