@NullMarked
package baton.engine.kernel;

import org.jspecify.annotations.NullMarked;
