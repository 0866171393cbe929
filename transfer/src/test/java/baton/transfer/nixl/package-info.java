/** Tests of the NIXL agent; those that need NIXL are skipped where it is not installed. */
@NullMarked
package baton.transfer.nixl;

import org.jspecify.annotations.NullMarked;
