/** Tests of what flows tell the legs. */
@NullMarked
package baton.router.flow;

import org.jspecify.annotations.NullMarked;
