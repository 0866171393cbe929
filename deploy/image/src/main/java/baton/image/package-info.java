/** Makes the layers of the container image. */
@NullMarked
package baton.image;

import org.jspecify.annotations.NullMarked;
