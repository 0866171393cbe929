/**
 * Mooncake's transfer engine: its TCP transport, handshake and metadata in Java, and its library by foreign functions.
 */
@NullMarked
package baton.transfer.mooncake;

import org.jspecify.annotations.NullMarked;
