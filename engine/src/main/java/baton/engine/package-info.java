/** One serving engine: its configuration, what can be asked of it, and its offline API. */
@NullMarked
package baton.engine;

import org.jspecify.annotations.NullMarked;
