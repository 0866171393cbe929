/** Tests of the router's metrics. */
@NullMarked
package baton.router.metrics;

import org.jspecify.annotations.NullMarked;
