package baton.bench;

import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

/** The end of a request that an engine of this process computes. */
final class RequestEnd {
    private RequestEnd() {}

    /** @throws IOException if it does not come in time, or the request failed */
    static GenerationEvent.Finished await(BlockingQueue<GenerationEvent.Finished> ends, Duration deadline)
            throws IOException {
        try {
            GenerationEvent.Finished end = ends.poll(deadline.toSeconds(), TimeUnit.SECONDS);
            if (end == null) {
                throw new IOException("a request did not end in " + deadline.toSeconds() + " s");
            }
            if (end.reason() == FinishReason.ERROR) {
                throw new IOException("a request failed: " + end.error().orElse("no reason given"));
            }
            return end;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }
}
