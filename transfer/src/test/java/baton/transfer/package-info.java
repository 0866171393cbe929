/** The contract of every transfer agent. */
@NullMarked
package baton.transfer;

import org.jspecify.annotations.NullMarked;
