/** One serving engine: its configuration, its requests and answers, and its offline API. */
@NullMarked
package baton.engine;

import org.jspecify.annotations.NullMarked;
