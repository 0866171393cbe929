/** Text in and out of a model: tokenizer, incremental detokenisation and chat templates. */
@NullMarked
package baton.engine.text;

import org.jspecify.annotations.NullMarked;
