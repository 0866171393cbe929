/** The safetensors file format, and the directories of such files that vLLM's shared-storage connector exchanges. */
@NullMarked
package baton.store.safetensors;

import org.jspecify.annotations.NullMarked;
