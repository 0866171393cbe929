/** Tests of how bodies are read and edited. */
@NullMarked
package baton.router.body;

import org.jspecify.annotations.NullMarked;
