@NullMarked
package baton.pipe.tcp;

import org.jspecify.annotations.NullMarked;
