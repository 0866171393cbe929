@NullMarked
package baton.pipe;

import org.jspecify.annotations.NullMarked;
