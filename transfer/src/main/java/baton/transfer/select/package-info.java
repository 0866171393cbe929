/** Chooses a transfer agent by configuration and by what the machine has. */
@NullMarked
package baton.transfer.select;

import org.jspecify.annotations.NullMarked;
