/** The API over real sockets, in front of an engine scripted by the test. */
@NullMarked
package baton.server;

import org.jspecify.annotations.NullMarked;
