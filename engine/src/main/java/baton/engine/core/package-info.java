/** The engine's core: which tokens each step computes, which blocks they live in, and what the connector is asked. */
@NullMarked
package baton.engine.core;

import org.jspecify.annotations.NullMarked;
