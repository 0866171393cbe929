/** The OpenAI HTTP API of one instance, with vLLM's extensions, in front of an engine. */
@NullMarked
package baton.server;

import org.jspecify.annotations.NullMarked;
