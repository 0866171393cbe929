/** The door to what models are computed on. */
@NullMarked
package baton.engine.backend;

import org.jspecify.annotations.NullMarked;
