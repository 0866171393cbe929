@NullMarked
package baton.pipe.c10d;

import org.jspecify.annotations.NullMarked;
