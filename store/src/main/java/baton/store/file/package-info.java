/** KV blocks in a directory of files, in the directory structure of vLLM's fs tier. */
@NullMarked
package baton.store.file;

import org.jspecify.annotations.NullMarked;
