/** Tests of the legs' bodies and ids. */
@NullMarked
package baton.router.flow;

import org.jspecify.annotations.NullMarked;
