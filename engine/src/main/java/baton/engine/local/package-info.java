/** The engine of this process, and its offline API. */
@NullMarked
package baton.engine.local;

import org.jspecify.annotations.NullMarked;
