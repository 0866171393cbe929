/** Tests of the P2P messages. */
@NullMarked
package baton.messages.p2p;

import org.jspecify.annotations.NullMarked;
