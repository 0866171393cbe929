/** Tests of the archive, unpacked and started. */
@NullMarked
package baton.dist;

import org.jspecify.annotations.NullMarked;
