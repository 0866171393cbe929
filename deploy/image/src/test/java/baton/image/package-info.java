/** Tests of the image: its file system is run as processes. */
@NullMarked
package baton.image;

import org.jspecify.annotations.NullMarked;
