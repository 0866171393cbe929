/** What every transfer agent keeps to. */
@NullMarked
package baton.transfer;

import org.jspecify.annotations.NullMarked;
