/** Tests of the P2P messages. */
@NullMarked
package baton.messages.mooncake;

import org.jspecify.annotations.NullMarked;
