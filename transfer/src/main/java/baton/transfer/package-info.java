/**
 * One-sided transfer: an agent registers memory, exchanges metadata with peers and moves lists of ranges, as NIXL's agents do. It
 * knows nothing of requests, blocks or schedulers.
 */
@NullMarked
package baton.transfer;

import org.jspecify.annotations.NullMarked;
