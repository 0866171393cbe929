/** The messages between SGLang's prefill and decode instances: a registry over HTTP and one-way messages over ZeroMQ. */
@NullMarked
package baton.messages.sglang;

import org.jspecify.annotations.NullMarked;
