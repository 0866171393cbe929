package baton.engine.core;

import baton.engine.model.Logits;
import java.util.Optional;
import java.util.Set;

/**
 * A step's logits, or why there are none.
 *
 * @param notFinite requests that have logits which are not finite
 */
record StepLogits(Optional<Logits> logits, Optional<String> failure, Set<Request> notFinite) implements AutoCloseable {
    @Override
    public void close() {
        logits.ifPresent(Logits::close);
    }
}
