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

/** Forwards one rank's calls to the {@link StepFileIo} of its engine. */
final class SharedStorageWorker implements WorkerConnector {
    private final StepFileIo stepFileIo;
    private final Rank rank;
    private List<String> layerNames = List.of();
    private long steps;
    private StepFileIo.Step step = new StepFileIo.Step(0, List.of(), List.of());

    SharedStorageWorker(StepFileIo stepFileIo, Rank rank) {
        this.stepFileIo = stepFileIo;
        this.rank = rank;
    }

    @Override
    public void register(KvCache cache) {
        layerNames = cache.layerNames();
        stepFileIo.register(rank, cache);
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(new SharedStorageConnector.LayerNames(layerNames));
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        step = stepFileIo.begin(++steps, metadata);
    }

    @Override
    public void waitForLayerLoad(int layer) {
        stepFileIo.awaitLayer(step, rank, layer);
    }

    @Override
    public void saveLayer(int layer) {
        stepFileIo.layerIsReady(step, rank, layer);
    }

    @Override
    public void waitForSave() {
        stepFileIo.finish(step, rank);
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        return stepFileIo.report(step);
    }

    @Override
    public void close() {
        stepFileIo.close();
    }
}
