/** Tests of the router over real sockets. */
@NullMarked
package baton.router;

import org.jspecify.annotations.NullMarked;
