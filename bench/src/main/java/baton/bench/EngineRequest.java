package baton.bench;

import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.local.LocalEngine;
import baton.kv.JsonFields;
import java.io.IOException;
import java.time.Duration;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** A request that an engine of this process computes. Times are {@link System#nanoTime}'s. */
final class EngineRequest {
    private final long submitted;
    private final CompletableFuture<Long> first = new CompletableFuture<>();
    private final CompletableFuture<Long> ended = new CompletableFuture<>();
    private final CompletableFuture<GenerationEvent.Finished> end = new CompletableFuture<>();

    private EngineRequest(LocalEngine engine, GenerationRequest request) {
        submitted = System.nanoTime();
        engine.submit(request, event -> {
            switch (event) {
                case GenerationEvent.Output output when output.ids().length > 0 -> first.complete(System.nanoTime());
                case GenerationEvent.Finished finished -> {
                    ended.complete(System.nanoTime());
                    end.complete(finished);
                }
                default -> {}
            }
        });
    }

    static EngineRequest submit(LocalEngine engine, GenerationRequest request) {
        return new EngineRequest(engine, request);
    }

    /** One that asks for a token. */
    static EngineRequest submit(LocalEngine engine, String id, int[] prompt, Optional<JsonFields> kvTransferParams) {
        SamplingParams sampling = SamplingParams.builder()
                .temperature(0)
                .ignoreEos(true)
                .maxTokens(1)
                .build();
        return submit(engine, new GenerationRequest(id, prompt, sampling, kvTransferParams, Optional.empty(), 0));
    }

    /** @throws IOException if it does not end in time, or has failed */
    GenerationEvent.Finished await(Duration deadline) throws IOException {
        try {
            GenerationEvent.Finished finished = end.get(deadline.toNanos(), TimeUnit.NANOSECONDS);
            if (finished.reason() == FinishReason.ERROR) {
                throw new IOException("a request failed: " + finished.error().orElse("no reason given"));
            }
            return finished;
        } catch (TimeoutException e) {
            throw new IOException("a request did not end in " + deadline.toSeconds() + " s", e);
        } catch (ExecutionException e) {
            throw new IllegalStateException(e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    long submitted() {
        return submitted;
    }

    /** When it ended; only after {@link #await}. */
    long ended() {
        return ended.resultNow();
    }

    /** The seconds from the submission to the first token; only after {@link #await}. */
    double secondsToFirst() {
        return (first.resultNow() - submitted) * 1e-9;
    }

    /** A random prompt, the same for the same numbers. */
    static int[] prompt(LocalEngine engine, int length, int which) {
        return new Random((long) which << 32 | length)
                .ints(length, 5, engine.model().vocabularySize())
                .toArray();
    }
}
