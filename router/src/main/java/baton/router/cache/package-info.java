/** The content of the KV caches of instances, by the events that they publish. */
@NullMarked
package baton.router.cache;

import org.jspecify.annotations.NullMarked;
