package baton.kv.connector;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Puts the reports of all ranks together, as vLLM's KVOutputAggregator does: a request is sent or received when every rank has said
 * so, in whatever step; a block is invalid, and a measurement made, as soon as one rank says so; all are busy while one is. Metadata
 * stays with its rank. A connector of several connectors merges each one's reports by one of these.
 */
public final class ReportMerger {
    private final int ranks;
    private final Map<String, BitSet> sent = new HashMap<>();
    private final Map<String, BitSet> received = new HashMap<>();
    /** The hidden states of requests that not all ranks have received. */
    private final Map<String, HiddenState> hidden = new HashMap<>();
    /** The unverified requests that not all ranks have received. */
    private final Set<String> unverified = new HashSet<>();

    /** @param ranks that report in each step */
    public ReportMerger(int ranks) {
        this.ranks = ranks;
    }

    /** @param reports one step's, in the order of the ranks */
    public WorkerReport merge(List<WorkerReport> reports) {
        if (ranks == 1) {
            return reports.getFirst().withMetadata(Optional.empty());
        }
        Set<String> sentByAll = new HashSet<>();
        Set<String> receivedByAll = new HashSet<>();
        Set<Integer> invalid = new HashSet<>();
        List<Measurement> measurements = new ArrayList<>();
        boolean busy = false;
        for (int rank = 0; rank < ranks; rank++) {
            WorkerReport report = reports.get(rank);
            count(rank, report.sent(), sent, sentByAll);
            count(rank, report.received(), received, receivedByAll);
            invalid.addAll(report.invalidBlocks());
            hidden.putAll(report.hidden());
            measurements.addAll(report.measurements());
            busy |= report.busy();
            unverified.addAll(report.unverified());
        }
        Map<String, HiddenState> hiddenOfReceived = new HashMap<>();
        if (!hidden.isEmpty()) {
            for (String request : receivedByAll) {
                Optional.ofNullable(hidden.remove(request)).ifPresent(state -> hiddenOfReceived.put(request, state));
            }
        }
        Set<String> unverifiedOfReceived = new HashSet<>(receivedByAll);
        unverifiedOfReceived.retainAll(unverified);
        unverified.removeAll(receivedByAll);
        return new WorkerReport(sentByAll, receivedByAll, invalid, measurements, busy)
                .withHidden(hiddenOfReceived)
                .withUnverified(unverifiedOfReceived);
    }

    private void count(int rank, Set<String> requests, Map<String, BitSet> ranksByRequest, Set<String> complete) {
        for (String request : requests) {
            BitSet done = ranksByRequest.computeIfAbsent(request, _ -> new BitSet(ranks));
            done.set(rank);
            if (done.cardinality() == ranks) {
                ranksByRequest.remove(request);
                complete.add(request);
            }
        }
    }
}
