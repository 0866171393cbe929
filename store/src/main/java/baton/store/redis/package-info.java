/** KV blocks kept at a Redis or Valkey server. */
@NullMarked
package baton.store.redis;

import org.jspecify.annotations.NullMarked;
