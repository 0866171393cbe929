/** The API over real sockets, in front of an engine that says what a test tells it to. */
@NullMarked
package baton.server;

import org.jspecify.annotations.NullMarked;
