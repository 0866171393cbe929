/** Tests of tensors by name. */
@NullMarked
package baton.pipe.p2p;

import org.jspecify.annotations.NullMarked;
