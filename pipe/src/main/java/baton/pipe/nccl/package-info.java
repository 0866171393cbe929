/** Wires over NCCL, by the JDK's foreign-function API. */
@NullMarked
package baton.pipe.nccl;

import org.jspecify.annotations.NullMarked;
