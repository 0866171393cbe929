/** Measurement of the engine against the limits of the machine it runs on. */
@NullMarked
package baton.bench;

import org.jspecify.annotations.NullMarked;
