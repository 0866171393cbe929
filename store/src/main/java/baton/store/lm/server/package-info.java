/** A cache process for many instances that speaks LMCache's lm protocol: {@code baton kv-server}. */
@NullMarked
package baton.store.lm.server;

import org.jspecify.annotations.NullMarked;
