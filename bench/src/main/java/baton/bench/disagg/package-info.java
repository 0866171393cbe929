/** Colocated prefill and decode with chunked prefill against one prefill and one decode instance: {@code baton bench disagg}. */
@NullMarked
package baton.bench.disagg;

import org.jspecify.annotations.NullMarked;
