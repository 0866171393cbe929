package baton.connectors.bykey;

import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.connectors.bykey.StoreConnectorMetadata.Save;
import baton.kv.KvCache;
import baton.kv.OwnerThread;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * The worker side of a connector over a store. Copies run beside the engine's steps: loads into blocks of requests that wait for them, saves
 * from full blocks, which are not written to while a request or the prefix cache has them. Only a request that is preempted is waited for, and
 * loads within a step.
 */
public final class StoreWorker implements WorkerConnector {
    private final StoreSession session;
    private final Rank rank;
    private final OwnerThread owner = OwnerThread.firstToCheck();
    private StoreConnectorMetadata step = StoreConnectorMetadata.NOTHING;
    private List<Save> unstarted = List.of();
    /** Loads that are over and have not been reported. */
    private final List<StoreSession.Loaded> loaded = new ArrayList<>();

    private boolean closed;

    public StoreWorker(StoreSession session, Rank rank) {
        this.session = session;
        this.rank = rank;
        session.sideOpened();
    }

    @Override
    public void register(KvCache cache) {
        session.register(rank, cache);
    }

    /** Every rank waits: it may write to the blocks as soon as it has returned. */
    @Override
    public void endReads(ConnectorMetadata metadata) {
        if (metadata instanceof StoreConnectorMetadata own) {
            session.flush(own.flush());
        }
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        owner.check();
        step = metadata instanceof StoreConnectorMetadata own ? own : StoreConnectorMetadata.NOTHING;
        endReads(metadata);
        if (rank.equals(Rank.FIRST)) {
            // The step before was not computed.
            unstarted.forEach(session::dropped);
            unstarted = step.saves();
            step.loads().forEach(session::load);
        }
    }

    @Override
    public void waitForLayerLoad(int layer) {
        if (layer == 0 && step.loads().stream().anyMatch(Load::withinStep)) {
            session.awaitLoaded(
                    rank,
                    step.loads().stream()
                            .filter(Load::withinStep)
                            .map(Load::requestId)
                            .collect(Collectors.toSet()));
        }
    }

    @Override
    public boolean savesByLayer() {
        return false;
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        unstarted.stream().filter(save -> requestIds.contains(save.requestId())).forEach(session::dropped);
        unstarted = unstarted.stream()
                .filter(save -> !requestIds.contains(save.requestId()))
                .toList();
    }

    @Override
    public void waitForSave() {
        // Keys and values that were computed from blocks which are not filled are wrong.
        loaded.addAll(session.takeLoaded(rank));
        discardSaves(loaded.stream()
                .filter(load -> load.withinStep() && !load.invalid().isEmpty())
                .map(StoreSession.Loaded::requestId)
                .collect(Collectors.toSet()));
        unstarted.forEach(session::save);
        unstarted = List.of();
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        owner.check();
        loaded.addAll(session.takeLoaded(rank));
        Set<String> received = new HashSet<>();
        Set<Integer> invalid = new HashSet<>();
        for (StoreSession.Loaded load : loaded) {
            if (!load.withinStep()) {
                received.add(load.requestId());
            }
            invalid.addAll(load.invalid());
        }
        loaded.clear();
        Set<String> sent = step.released();
        step = StoreConnectorMetadata.NOTHING;
        Optional<WorkerMetadata> done = Optional.empty();
        if (rank.equals(Rank.FIRST)) {
            List<Long> saved = session.takeSaved();
            done = saved.isEmpty() ? Optional.empty() : Optional.of(new SavesDone(saved));
        }
        return new WorkerReport(sent, received, invalid, List.of(), session.isBusy())
                .withMetadata(done)
                .withUnverified(session.store().hasReadUnverified() ? received : Set.of());
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            try {
                session.stop();
            } finally {
                session.sideClosed();
            }
        }
    }
}
