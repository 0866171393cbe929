/** A simulated GPU: a driver whose kernels are executed by an interpreter of PTX text, which checks each access to memory. */
@NullMarked
package baton.cuda.sim;

import org.jspecify.annotations.NullMarked;
