/** Wires over LibTorch's c10d: Gloo, for host memory. */
@NullMarked
package baton.pipe.c10d;

import org.jspecify.annotations.NullMarked;
