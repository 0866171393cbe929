@NullMarked
package baton.memory;

import org.jspecify.annotations.NullMarked;
