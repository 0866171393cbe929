/** Prompts' KV caches as directories of safetensors files, in the layout of vLLM's shared-storage connector. */
@NullMarked
package baton.store.prompt;

import org.jspecify.annotations.NullMarked;
