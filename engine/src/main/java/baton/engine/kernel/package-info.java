/** Kernels of machine code for processors with AVX2 or AVX-512: products with weights, attention, norms, rotations. */
@NullMarked
package baton.engine.kernel;

import org.jspecify.annotations.NullMarked;
