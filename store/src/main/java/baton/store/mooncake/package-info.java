/** Values in Mooncake's distributed store, which is reached through its C library or its REST service. */
@NullMarked
package baton.store.mooncake;

import org.jspecify.annotations.NullMarked;
