/** Tests of requests over connections that are kept. */
@NullMarked
package baton.messages.http;

import org.jspecify.annotations.NullMarked;
