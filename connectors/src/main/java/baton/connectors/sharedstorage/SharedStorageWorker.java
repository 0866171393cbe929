package baton.connectors.sharedstorage;

import baton.kv.KvCache;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** Forwards one rank's calls to the {@link FileTransfers} of its engine. */
final class SharedStorageWorker implements WorkerConnector {
    private final FileTransfers transfers;
    private final Rank rank;
    private List<String> layerNames = List.of();
    private long steps;
    private FileTransfers.Step step = new FileTransfers.Step(0, List.of());

    SharedStorageWorker(FileTransfers transfers, Rank rank) {
        this.transfers = transfers;
        this.rank = rank;
    }

    @Override
    public void register(KvCache cache) {
        layerNames = cache.layerNames();
        transfers.register(rank, cache);
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(new SharedStorageConnector.LayerNames(layerNames));
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        step = transfers.begin(++steps, metadata);
    }

    @Override
    public void saveLayer(int layer) {
        transfers.layerIsReady(step, rank, layer);
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        transfers.discard(step, requestIds);
    }

    @Override
    public void waitForSave() {
        transfers.finish(step, rank);
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        return transfers.report(rank);
    }

    @Override
    public void close() {
        transfers.close();
    }
}
