/** The transfer agent over NIXL (NVIDIA Inference Xfer Library), called through its C API by the JDK's foreign-function API. */
@NullMarked
package baton.transfer.nixl;

import org.jspecify.annotations.NullMarked;
