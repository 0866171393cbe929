/**
 * Mechanics of connectors that move blocks by one-sided transfers: handshakes, peers, leases, block geometry, checksums, loads, pushes.
 * A connector adds its messages, names and policy.
 */
@NullMarked
package baton.connectors.onesided;

import org.jspecify.annotations.NullMarked;
