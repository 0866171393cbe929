/** Chooses a transfer agent by configuration and by the machine's devices and libraries. */
@NullMarked
package baton.transfer.select;

import org.jspecify.annotations.NullMarked;
