/** Tests of the embedded transfer agent. */
@NullMarked
package baton.transfer.embedded;

import org.jspecify.annotations.NullMarked;
