/** Tests of the messages between SGLang's instances. */
@NullMarked
package baton.messages.sglang;

import org.jspecify.annotations.NullMarked;
