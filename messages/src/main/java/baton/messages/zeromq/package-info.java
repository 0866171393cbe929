/** The side channel in the wire protocol of ZeroMQ's REQ and ROUTER sockets. */
@NullMarked
package baton.messages.zeromq;

import org.jspecify.annotations.NullMarked;
