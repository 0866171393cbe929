/** Text of kernels in PTX, the assembly language that NVIDIA's driver compiles. */
@NullMarked
package baton.cuda.ptx;

import org.jspecify.annotations.NullMarked;
