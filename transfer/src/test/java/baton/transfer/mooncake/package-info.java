/** Tests of the agents that speak with Mooncake engines; those that need a real one are skipped where it is not installed. */
@NullMarked
package baton.transfer.mooncake;

import org.jspecify.annotations.NullMarked;
