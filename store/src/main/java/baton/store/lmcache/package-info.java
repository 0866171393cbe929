/** Chunks of KV cache at remote stores as LMCache keeps them: its keys, its bytes, its metadata. */
@NullMarked
package baton.store.lmcache;

import org.jspecify.annotations.NullMarked;
