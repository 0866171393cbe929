/** Changes of KV caches as messages, for routers that send requests to the instance that has their prefix. */
@NullMarked
package baton.messages.events;

import org.jspecify.annotations.NullMarked;
