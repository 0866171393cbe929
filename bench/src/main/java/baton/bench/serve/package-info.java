/** Load on a server with OpenAI's API at given times, measured by its clients: {@code baton bench serve}. */
@NullMarked
package baton.bench.serve;

import org.jspecify.annotations.NullMarked;
