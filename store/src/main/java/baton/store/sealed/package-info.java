/** Values that are encrypted before a store takes them. */
@NullMarked
package baton.store.sealed;

import org.jspecify.annotations.NullMarked;
