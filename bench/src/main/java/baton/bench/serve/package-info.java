/** Load on a server with OpenAI's API at given times, and what its clients see of it: {@code baton bench serve}. */
@NullMarked
package baton.bench.serve;

import org.jspecify.annotations.NullMarked;
