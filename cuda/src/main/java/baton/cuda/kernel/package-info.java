/** Kernels of models, as methods that enqueue them on a stream. */
@NullMarked
package baton.cuda.kernel;

import org.jspecify.annotations.NullMarked;
