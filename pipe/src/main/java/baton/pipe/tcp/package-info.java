/** Wires over TCP: nothing but the JDK. */
@NullMarked
package baton.pipe.tcp;

import org.jspecify.annotations.NullMarked;
