/** A simulated GPU: an interpreter of PTX text executes the kernels and checks each access to memory. */
@NullMarked
package baton.cuda.sim;

import org.jspecify.annotations.NullMarked;
