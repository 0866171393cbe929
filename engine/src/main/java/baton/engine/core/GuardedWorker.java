package baton.engine.core;

import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.util.Optional;
import java.util.Set;

/**
 * A worker connector that is not called any more once it has thrown something, or is closed. Methods that are called before the first step, and
 * {@link #close}, may throw.
 */
final class GuardedWorker implements WorkerConnector {
    private final WorkerConnector connector;
    private final ConnectorFailures failures;
    private boolean failed;
    private boolean closed;

    GuardedWorker(WorkerConnector connector, ConnectorFailures failures) {
        this.connector = connector;
        this.failures = failures;
    }

    private <T> T call(String method, T otherwise, ConnectorFailures.Call<T> call) {
        if (failed || closed) {
            return otherwise;
        }
        return failures.guard(method, otherwise, () -> {
            failed = true;
            try {
                T result = call.run();
                failed = false;
                return result;
            } catch (VirtualMachineError e) {
                failed = failures.isOfConnector(e);
                throw e;
            }
        });
    }

    private void call(String method, Runnable call) {
        call(method, true, () -> {
            call.run();
            return true;
        });
    }

    @Override
    public void register(KvCache cache) {
        connector.register(cache);
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return connector.handshakeMetadata();
    }

    @Override
    public boolean wantsHidden() {
        return connector.wantsHidden();
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        call("startLoad", () -> connector.startLoad(metadata));
    }

    @Override
    public KvFence layerLoaded(int layer) {
        return call("waitForLayerLoad", KvFence.PASSED, () -> connector.layerLoaded(layer));
    }

    @Override
    public void saveLayer(int layer, KvFence computed) {
        call("saveLayer", () -> connector.saveLayer(layer, computed));
    }

    @Override
    public boolean savesByLayer() {
        return connector.savesByLayer();
    }

    @Override
    public void saveHidden(String requestId, HiddenState state) {
        call("saveHidden", () -> connector.saveHidden(requestId, state));
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        call("discardSaves", () -> connector.discardSaves(requestIds));
    }

    @Override
    public void waitForSave() {
        call("waitForSave", connector::waitForSave);
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        return call("report", WorkerReport.NOTHING, () -> connector.report(finished));
    }

    /** Closes it, once. */
    @Override
    public void close() {
        if (!closed) {
            closed = true;
            connector.close();
        }
    }
}
