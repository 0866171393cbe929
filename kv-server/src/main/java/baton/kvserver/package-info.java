/** A cache process for many instances that speaks LMCache's lm protocol: {@code baton kv-server}. */
@NullMarked
package baton.kvserver;

import org.jspecify.annotations.NullMarked;
