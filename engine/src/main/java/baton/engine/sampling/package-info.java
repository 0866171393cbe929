/** From logits to tokens. */
@NullMarked
package baton.engine.sampling;

import org.jspecify.annotations.NullMarked;
