package baton.kv.connector;

import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * A worker connector's report of its work since the last one.
 *
 * @param sent requests with a delayed release that no longer need their blocks
 * @param received requests with an asynchronous load that is over, well or badly
 * @param invalidBlocks blocks that could not be loaded; for an asynchronous load reported no later than {@code received}
 * @param hidden of received requests, the hidden state of the prompt's last token, if it came; from one rank or from several. If all
 *     keys and values of the prompt came too, nothing of it is computed here
 * @param measurements for the metrics
 * @param busy the worker needs further steps, although no request may be left that does
 * @param metadata for the connector's scheduler side, which gets it by rank; empty in the report that all ranks' are merged to
 * @param unverified received requests with blocks that came without digests, so that only the engine can verify them
 */
public record WorkerReport(
        Set<String> sent,
        Set<String> received,
        Set<Integer> invalidBlocks,
        Map<String, HiddenState> hidden,
        List<Measurement> measurements,
        boolean busy,
        Optional<WorkerMetadata> metadata,
        Set<String> unverified) {
    public static final WorkerReport NOTHING = new WorkerReport(Set.of(), Set.of(), Set.of(), List.of());

    public WorkerReport {
        // Keeping the order: the same reports lead to the same schedule, in every process.
        sent = Collections.unmodifiableSet(new LinkedHashSet<>(sent));
        received = Collections.unmodifiableSet(new LinkedHashSet<>(received));
        invalidBlocks = Collections.unmodifiableSet(new LinkedHashSet<>(invalidBlocks));
        hidden = Map.copyOf(hidden);
        measurements = List.copyOf(measurements);
        unverified = Set.copyOf(unverified);
    }

    /** The report of a worker that loads keys and values only, with digests. */
    public WorkerReport(
            Set<String> sent,
            Set<String> received,
            Set<Integer> invalidBlocks,
            List<Measurement> measurements,
            boolean busy) {
        this(sent, received, invalidBlocks, Map.of(), measurements, busy, Optional.empty(), Set.of());
    }

    /** The report of a worker that does something within steps only. */
    public WorkerReport(
            Set<String> sent, Set<String> received, Set<Integer> invalidBlocks, List<Measurement> measurements) {
        this(sent, received, invalidBlocks, measurements, false);
    }

    /** This report with other metadata. */
    public WorkerReport withMetadata(Optional<WorkerMetadata> other) {
        return new WorkerReport(sent, received, invalidBlocks, hidden, measurements, busy, other, unverified);
    }

    /** This report with other hidden states. */
    public WorkerReport withHidden(Map<String, HiddenState> other) {
        return new WorkerReport(sent, received, invalidBlocks, other, measurements, busy, metadata, unverified);
    }

    /** This report with other unverified loads. */
    public WorkerReport withUnverified(Set<String> other) {
        return new WorkerReport(sent, received, invalidBlocks, hidden, measurements, busy, metadata, other);
    }
}
