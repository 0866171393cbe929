/** A block store in host memory, of one process or shared by those of a host. */
@NullMarked
package baton.store.memory;

import org.jspecify.annotations.NullMarked;
