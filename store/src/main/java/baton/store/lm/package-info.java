/** LMCache's {@code lm} protocol, version 0.5: a client. */
@NullMarked
package baton.store.lm;

import org.jspecify.annotations.NullMarked;
