/** The router in front of prefill and decode instances: a prefill instance computes each request's prompt, a decode instance its answer. */
@NullMarked
package baton.router;

import org.jspecify.annotations.NullMarked;
