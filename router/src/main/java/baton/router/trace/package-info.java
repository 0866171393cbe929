/** The traces of requests: kept for a while, and explained. */
@NullMarked
package baton.router.trace;

import org.jspecify.annotations.NullMarked;
