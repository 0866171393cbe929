/** HTTP requests over connections that are kept. For modules that have Vert.x. */
@NullMarked
package baton.messages.http;

import org.jspecify.annotations.NullMarked;
