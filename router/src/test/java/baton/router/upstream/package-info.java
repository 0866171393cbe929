/** Tests of the legs' bodies and ids. */
@NullMarked
package baton.router.upstream;

import org.jspecify.annotations.NullMarked;
