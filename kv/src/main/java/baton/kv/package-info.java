/** The vocabulary of KV caches: element types, cache layout, block hashes and the transfer configuration. */
@NullMarked
package baton.kv;

import org.jspecify.annotations.NullMarked;
