/** The two-sided primitive: tensors from one process to another, in order, and lookups built on that. */
@NullMarked
package baton.pipe;

import org.jspecify.annotations.NullMarked;
