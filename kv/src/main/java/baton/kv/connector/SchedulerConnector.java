package baton.kv.connector;

import baton.kv.JsonFields;
import baton.kv.KvEvent;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;

/**
 * The deciding side of a connector. All calls come from the scheduler's one thread, none may block on anything remote.
 *
 * <p>For each request: {@link #onNewRequest}, then {@link #match} (any number of times), {@link #onAllocated}, then steps, then
 * {@link #onFinished} exactly once. For each step: {@link #buildMetadata} before it, {@link #onStepDone} after it.
 *
 * <p>An engine closes a connector that throws, on either side, and goes on without it: prompts that it was loading are computed, or the requests
 * fail, by {@code kv_load_failure_policy}. An exception is not thrown on, except by {@link #onHandshakeMetadata} and
 * {@link #advertisedKvTransferParams}, and where {@link #onNewRequest} or {@link #match} refuse a request for a bad parameter by an
 * {@link baton.kv.InvalidFieldException}: then that request alone ends with an error.
 */
public interface SchedulerConnector extends AutoCloseable {
    /** Receives the workers' handshake metadata, once, before the first step. */
    default void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {}

    /**
     * The {@code kv_transfer_params} of a decode request that is sent at the same time as its prefill request to this instance.
     * Public: every client can read these parameters, so they must not contain secrets. Called after {@link #onHandshakeMetadata},
     * and again when a child of a connector has been switched off.
     *
     * @return empty if a decode request needs parameters of the prefill request's answer, or none
     */
    default Optional<JsonFields> advertisedKvTransferParams() {
        return Optional.empty();
    }

    /** A request has come in. */
    default void onNewRequest(KvRequest request) {}

    /**
     * Whether another instance has computed the request's prompt, so that it waits for a load: an engine counts such requests. As the
     * field {@code do_remote_prefill}, which vLLM's connectors share, says; a connector with other parameters overrides this.
     */
    default boolean isPrefilledElsewhere(KvRequest request) {
        return request.kvTransferParams()
                .flatMap(params -> params.value("do_remote_prefill"))
                .filter(value -> value.isBoolean() && value.asBoolean())
                .isPresent();
    }

    /**
     * A request was refused before it became one: it is too long, or has a bad parameter. No other method is called for it. Not
     * called where it may be tried elsewhere: too many wait, or the engine stops.
     *
     * @param requestId that it would have had
     * @param kvTransferParams its own
     */
    default void onRefused(String requestId, JsonFields kvTransferParams) {}

    /**
     * The number of tokens after the first {@code computedTokens} that can be loaded. May be called repeatedly for a request and must
     * change nothing.
     *
     * @param computedTokens tokens with KV in the pool already; whole blocks
     */
    KvMatch match(KvRequest request, int computedTokens);

    /**
     * Blocks were allocated. For an asynchronous load called twice: when the load starts, and with {@code externalTokens = 0}
     * when the request is scheduled after it. Decide by {@code externalTokens}, not by the blocks.
     *
     * @param blockTable all blocks of the request so far, those of computed tokens included; of several groups of layers
     *     ({@link ConnectorContext#groups}) the tables of equal length one after the other
     * @param computedTokens tokens with KV in the pool before
     * @param externalTokens tokens this connector is to load, following the computed ones
     */
    void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens);

    /** The workers' orders for this step. Called exactly once in every step. */
    ConnectorMetadata buildMetadata(ScheduledStep step);

    /** Receives the report of all ranks; for a connector without worker metadata. */
    default void onStepDone(WorkerReport report) {}

    /**
     * Receives the workers' report. The engine calls this method, and no other, after each step.
     *
     * @param report of all ranks together, without metadata
     * @param metadata of this step's reports, by rank; only of reports that had some
     */
    default void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        onStepDone(report);
    }

    /**
     * The request has ended, for whatever reason; its blocks are still in place.
     *
     * @param blockTable its blocks, as in {@link #onAllocated}; empty if it never had any, e.g. aborted while it waited
     */
    default Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        return Release.NOW;
    }

    /**
     * The answer with the {@code kv_transfer_params} of a request that has ended was lost, as its client had left. Called at most once, and
     * only while the request's blocks are kept. A peer that needs the answer to find the blocks will not read them.
     */
    default void onAnswerLost(String requestId) {}

    /** The model found that keys and values which were loaded for a request are not its own. Called before the request ends or waits again. */
    default void onWrongLoad(KvRequest request) {}

    /** True while steps must go on although no request is running, e.g. because transfers are to be started. */
    default boolean hasPendingWork() {
        return false;
    }

    /**
     * True while values that were computed here are on their way to a store. An instance that ends goes on with steps until they have
     * arrived, for a while: they would be lost.
     */
    default boolean isStoring() {
        return false;
    }

    /** Removes its blocks from caches elsewhere, as far as it can. Returns false if it cannot now. */
    default boolean resetCache() {
        return true;
    }

    /** Measurements since the last call. */
    default List<Measurement> takeMeasurements() {
        return List.of();
    }

    /** Changes of the caches that this connector keeps since the last call, in order. Taken after each step. */
    default List<KvEvent> takeEvents() {
        return List.of();
    }

    @Override
    void close();

    /** Why a request ended. */
    enum RequestEnd {
        /** A stop token or stop string. */
        STOPPED,
        /** Its token limit; the usual end of a prefill leg. */
        LENGTH,
        /** Its client left, or caches hold less of it than it requires. */
        ABORTED,
        /** The request failed. */
        ERROR
    }

    /**
     * The release of a finished request's blocks.
     *
     * @param delayed true: the connector still needs them, until a worker reports the request as sent
     * @param kvTransferParams goes into the response, for the instance that takes over
     * @param error why there can be no such response: the request ends with this error instead
     * @param answerIsHeld whether the response must wait, because KV of the prompt is on its way to a store in which the instance that
     *     takes over looks for it. Asked after each step until it is false; a connector has a deadline for it. Not asked about a
     *     request that was aborted or failed
     */
    record Release(
            boolean delayed,
            Optional<JsonFields> kvTransferParams,
            Optional<String> error,
            BooleanSupplier answerIsHeld) {
        /** The response need not wait. */
        public static final BooleanSupplier ANSWER_AT_ONCE = () -> false;

        /** Blocks are free at once, nothing goes into the response. */
        public static final Release NOW = new Release(false, Optional.empty());

        /** The release of a request that ends as it would without a connector. */
        public Release(boolean delayed, Optional<JsonFields> kvTransferParams) {
            this(delayed, kvTransferParams, Optional.empty(), ANSWER_AT_ONCE);
        }
    }

    /**
     * One step as scheduled.
     *
     * @param requests those that have tokens to compute in it
     * @param finished ids of requests that ended since the last step
     * @param preempted ids of requests that lost their blocks to this step, or since the last step to a failed load; these may be among
     *     {@code requests} again, with other blocks. The step's forward pass may write to the lost blocks, so a worker must have finished
     *     reading them when {@link WorkerConnector#startLoad} returns
     */
    record ScheduledStep(List<ScheduledRequest> requests, Set<String> finished, Set<String> preempted) {}

    /**
     * One request's part in a step.
     *
     * @param blockTable all its blocks, as in {@link #onAllocated}
     * @param computedTokens tokens with KV in place before this step, loaded ones included
     * @param scheduledTokens tokens computed in this step
     */
    record ScheduledRequest(KvRequest request, int[] blockTable, int computedTokens, int scheduledTokens) {}
}
