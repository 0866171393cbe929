/** Connectors over a store of KV blocks by key: which chunks are loaded and stored, and when. */
@NullMarked
package baton.connectors.bykey;

import org.jspecify.annotations.NullMarked;
