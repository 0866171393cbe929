/** The metrics of the router. */
@NullMarked
package baton.router.metrics;

import org.jspecify.annotations.NullMarked;
