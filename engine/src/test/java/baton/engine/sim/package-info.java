/**
 * Whole clusters in one thread: engine cores over a model that tells wrong caches, connectors over a network in memory, clients
 * and a router, all from one seed and under one virtual clock.
 */
@NullMarked
package baton.engine.sim;

import org.jspecify.annotations.NullMarked;
