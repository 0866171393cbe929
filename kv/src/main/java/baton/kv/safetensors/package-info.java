/** The safetensors file format. */
@NullMarked
package baton.kv.safetensors;

import org.jspecify.annotations.NullMarked;
