/** Connectors that need host memory, over the pool of a device. */
@NullMarked
package baton.kv.staging;

import org.jspecify.annotations.NullMarked;
