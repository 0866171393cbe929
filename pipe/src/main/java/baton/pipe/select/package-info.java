/** Chooses a wire transport by configuration. */
@NullMarked
package baton.pipe.select;

import org.jspecify.annotations.NullMarked;
