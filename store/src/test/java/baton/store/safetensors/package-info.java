/** Tests of the safetensors format. */
@NullMarked
package baton.store.safetensors;

import org.jspecify.annotations.NullMarked;
