/** The engine's core: which tokens each step computes, which blocks they live in, and the calls of the connector. */
@NullMarked
package baton.engine.core;

import org.jspecify.annotations.NullMarked;
