/** The router in front of prefill and decode instances: each request's prompt goes to one, its answer comes from another. */
@NullMarked
package baton.router;

import org.jspecify.annotations.NullMarked;
