@NullMarked
package baton.pipe.memory;

import org.jspecify.annotations.NullMarked;
