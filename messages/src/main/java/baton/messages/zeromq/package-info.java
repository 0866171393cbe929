/** The wire protocol of ZeroMQ: side channel and peer channel as REQ, DEALER and ROUTER sockets, events as a PUB socket. */
@NullMarked
package baton.messages.zeromq;

import org.jspecify.annotations.NullMarked;
