@NullMarked
package baton.engine.gguf;

import org.jspecify.annotations.NullMarked;
