/** Chooses tokens by their logits. */
@NullMarked
package baton.engine.sampling;

import org.jspecify.annotations.NullMarked;
