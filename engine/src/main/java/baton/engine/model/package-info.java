/** Models on LibTorch: checkpoints, forward passes over the paged KV cache, logits. The only engine package that knows LibTorch. */
@NullMarked
package baton.engine.model;

import org.jspecify.annotations.NullMarked;
