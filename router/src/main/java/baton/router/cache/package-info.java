/** What the KV caches of instances hold, by the events that they publish. */
@NullMarked
package baton.router.cache;

import org.jspecify.annotations.NullMarked;
