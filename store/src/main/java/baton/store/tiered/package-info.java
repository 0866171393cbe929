/** A memory store in front of slower stores. */
@NullMarked
package baton.store.tiered;

import org.jspecify.annotations.NullMarked;
