/** Tests of stored prompts. */
@NullMarked
package baton.store.prompt;

import org.jspecify.annotations.NullMarked;
