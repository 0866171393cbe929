/** GGUF files, read as the Hugging Face checkpoints that they were made of. */
@NullMarked
package baton.engine.gguf;

import org.jspecify.annotations.NullMarked;
