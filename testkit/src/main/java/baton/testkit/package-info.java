/** Fixtures of tests: a virtual clock, a network in memory, requests made of tokens alone, and an engine's side of a connector. */
@NullMarked
package baton.testkit;

import org.jspecify.annotations.NullMarked;
