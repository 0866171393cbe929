package baton.engine;

import baton.kv.DType;
import baton.kv.KvEvent;
import baton.kv.connector.Measurement;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** Observes an engine, for metrics. Called on the engine's thread; must not block. */
public interface EngineListener {
    EngineListener NONE = new EngineListener() {};

    /**
     * The engine is about to take requests.
     *
     * @param maxModelLen tokens that prompt and output of one request may have together
     * @param dtype of the KV cache
     * @param blocks of the KV cache
     */
    default void onStart(EngineConfig config, int maxModelLen, DType dtype, int blocks) {}

    /** A step is done. */
    default void onStep(StepStats stats) {}

    /** Times of a step that computed something, by phase. */
    default void onStepTimes(StepTimes times) {}

    /** A sequence has its first token, {@code seconds} after it came in: all of its prompt is computed or was cached. */
    default void onFirstToken(double seconds, PromptTokens prompt) {}

    /** A sequence has one more token, {@code seconds} after the one before. */
    default void onNextToken(double seconds) {}

    /** A sequence has ended. */
    default void onFinished(RequestStats stats) {}

    /**
     * All {@code n} sequences of a request have ended.
     *
     * @param longestOutput tokens of the longest of them
     */
    default void onAllFinished(int n, int longestOutput) {}

    /** A connector measured something. */
    default void onMeasurements(List<Measurement> measurements) {}

    /** The connector's caches have changed. */
    default void onKvEvents(List<KvEvent> events) {}

    /** Passes each event to this listener, then to the other. */
    default EngineListener and(EngineListener other) {
        List<EngineListener> both = List.of(this, other);
        return new ForwardingListener() {
            @Override
            protected void pass(Consumer<EngineListener> event) {
                both.forEach(event);
            }
        };
    }

    /**
     * One step.
     *
     * @param scheduledTokens tokens computed
     * @param generatedTokens tokens sampled
     * @param preempted requests that lost their blocks
     * @param prefixCacheQueries tokens looked up in the prefix cache
     * @param prefixCacheHits those of them found
     * @param externalQueries tokens asked of the connector
     * @param externalHits those of them it had
     * @param seconds duration of the step
     * @param status the load afterwards
     */
    record StepStats(
            int scheduledTokens,
            int generatedTokens,
            int preempted,
            long prefixCacheQueries,
            long prefixCacheHits,
            long externalQueries,
            long externalHits,
            double seconds,
            EngineStatus status) {}

    /** A prompt's tokens by where their KV came from. */
    record PromptTokens(int localCompute, int localCacheHit, int externalKvTransfer) {
        public static final PromptTokens NONE = new PromptTokens(0, 0, 0);
    }

    /**
     * Where a step's time went.
     *
     * @param sequences in the batch
     * @param tokens computed; as many as sequences if all of them decode
     * @param nanos by phase; none if there is nothing of it
     */
    record StepTimes(int sequences, int tokens, Map<StepPhase, Long> nanos) {
        /** Nanoseconds spent in a phase. */
        public long nanos(StepPhase phase) {
            return nanos.getOrDefault(phase, 0L);
        }

        /** Nanoseconds from the end of the step before to the end of this one, waiting for work left out. */
        public long totalNanos() {
            return nanos.values().stream().mapToLong(each -> each).sum();
        }

        /** Nanoseconds in which the model did not compute. */
        public long overheadNanos() {
            return totalNanos() - nanos(StepPhase.MODEL);
        }
    }

    /**
     * One sequence, when it ends. {@code maxTokens} is the limit of its output. The three parts of
     * {@code prompt} add up to {@code promptTokens} if it got as far as its first token.
     *
     * @param requestId the engine's id of the sequence, as connectors know it
     * @param replayedTokens those of {@code outputTokens} that another instance had generated
     */
    record RequestStats(
            String requestId,
            FinishReason reason,
            int promptTokens,
            int outputTokens,
            int replayedTokens,
            int maxTokens,
            PromptTokens prompt,
            double queueSeconds,
            double prefillSeconds,
            double decodeSeconds,
            double totalSeconds,
            RequestTimes times) {}
}
