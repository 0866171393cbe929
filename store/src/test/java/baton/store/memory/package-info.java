/** Tests of the block store in host memory. */
@NullMarked
package baton.store.memory;

import org.jspecify.annotations.NullMarked;
