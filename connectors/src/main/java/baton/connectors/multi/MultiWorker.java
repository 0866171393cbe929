package baton.connectors.multi;

import baton.connectors.multi.MultiMetadata.Load;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.Measurement;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;

/** Forwards one rank's calls to the children's workers. The headed comment in {@link MultiScheduler} says how they go together. */
final class MultiWorker implements WorkerConnector {
    /** Label of children's measurements, which keeps them apart. */
    static final String LABEL = "connector";

    /**
     * A child's worker.
     *
     * @param failure common to the child's workers of all ranks
     */
    record Part(String label, WorkerConnector connector, ChildFailure failure) {}

    private final List<Part> parts;
    private final BitSet closed = new BitSet();
    private final BitSet wantsHidden = new BitSet();
    /** The loads by request that this rank has not reported as over. */
    private final Map<String, Load> loading = new LinkedHashMap<>();

    private Set<String> released = Set.of();
    private int layers;
    /** Children that have been asked for all layers of this step. */
    private final BitSet layersAwaited = new BitSet();
    /** The exception of a failed close: transfers may go on. */
    private Optional<RuntimeException> notClosed = Optional.empty();

    MultiWorker(List<Part> parts) {
        this.parts = List.copyOf(parts);
    }

    private <T> T call(int child, String method, T otherwise, Supplier<T> call) {
        Part part = parts.get(child);
        T result = otherwise;
        if (!part.failure().any() && !closed.get(child)) {
            result = part.failure().guard(method, otherwise, call);
        }
        if (part.failure().any()) {
            // On this rank too, before anything else may use its blocks.
            closeFailed(child);
        }
        return result;
    }

    private void call(int child, String method, Runnable call) {
        call(child, method, true, () -> {
            call.run();
            return true;
        });
    }

    private void closeFailed(int child) {
        if (closed.get(child)) {
            return;
        }
        closed.set(child);
        try {
            parts.get(child).connector().close();
        } catch (RuntimeException | Error e) {
            notClosed = Optional.of(
                    new IllegalStateException(parts.get(child).label() + ", which has failed, could not be closed", e));
            throw notClosed.get();
        }
    }

    @Override
    public void register(KvCache cache) {
        layers = cache.groups().layers();
        parts.forEach(part -> part.connector().register(cache));
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        List<Optional<HandshakeMetadata>> own =
                parts.stream().map(part -> part.connector().handshakeMetadata()).toList();
        return own.stream().anyMatch(Optional::isPresent)
                ? Optional.of(new MultiReport.Handshake(own))
                : Optional.empty();
    }

    @Override
    public boolean wantsHidden() {
        for (int i = 0; i < parts.size(); i++) {
            wantsHidden.set(i, parts.get(i).connector().wantsHidden());
        }
        return !wantsHidden.isEmpty();
    }

    @Override
    public void endReads(ConnectorMetadata metadata) {
        if (metadata instanceof MultiMetadata step) {
            for (int i = 0; i < parts.size(); i++) {
                WorkerConnector connector = parts.get(i).connector();
                ConnectorMetadata own = step.children().get(i);
                call(i, "endReads", () -> connector.endReads(own));
            }
        }
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        layersAwaited.clear();
        List<ConnectorMetadata> own = List.of();
        Set<Integer> withinStep = new LinkedHashSet<>();
        if (metadata instanceof MultiMetadata step) {
            own = step.children();
            released = step.released();
            for (Load load : step.loads()) {
                loading.put(load.requestId(), load);
                if (load.withinStep()) {
                    withinStep.add(load.child());
                }
            }
            step.off().stream().forEach(this::closeFailed);
        }
        // A load of one may write to blocks that another reads.
        endReads(metadata);
        for (int i = 0; i < parts.size(); i++) {
            WorkerConnector connector = parts.get(i).connector();
            ConnectorMetadata each = own.isEmpty() ? new ConnectorMetadata.None() : own.get(i);
            call(i, "startLoad", () -> connector.startLoad(each));
        }
        // There may be no forward pass that asks for these layers.
        for (int i : withinStep) {
            for (int layer = 0; layer < layers; layer++) {
                waitForLayerLoad(i, layer);
            }
            layersAwaited.set(i);
        }
    }

    @Override
    public void waitForLayerLoad(int layer) {
        for (int i = 0; i < parts.size(); i++) {
            if (!layersAwaited.get(i)) {
                waitForLayerLoad(i, layer);
            }
        }
    }

    private void waitForLayerLoad(int child, int layer) {
        WorkerConnector connector = parts.get(child).connector();
        call(child, "waitForLayerLoad", () -> connector.waitForLayerLoad(layer));
    }

    @Override
    public void saveLayer(int layer) {
        for (int i = 0; i < parts.size(); i++) {
            WorkerConnector connector = parts.get(i).connector();
            call(i, "saveLayer", () -> connector.saveLayer(layer));
        }
    }

    @Override
    public boolean savesByLayer() {
        return parts.stream().anyMatch(part -> part.connector().savesByLayer());
    }

    @Override
    public void saveHidden(String requestId, HiddenState state) {
        wantsHidden.stream().forEach(i -> {
            WorkerConnector connector = parts.get(i).connector();
            call(i, "saveHidden", () -> connector.saveHidden(requestId, state));
        });
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        for (int i = 0; i < parts.size(); i++) {
            WorkerConnector connector = parts.get(i).connector();
            call(i, "discardSaves", () -> connector.discardSaves(requestIds));
        }
    }

    @Override
    public void waitForSave() {
        for (int i = 0; i < parts.size(); i++) {
            WorkerConnector connector = parts.get(i).connector();
            call(i, "waitForSave", connector::waitForSave);
        }
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        List<WorkerReport> own = new ArrayList<>();
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        Map<String, HiddenState> hidden = new HashMap<>();
        List<Measurement> measurements = new ArrayList<>();
        Set<String> unverified = new HashSet<>();
        BitSet failed = new BitSet();
        boolean busy = false;
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            WorkerReport report = call(
                    i, "report", WorkerReport.NOTHING, () -> part.connector().report(finished));
            own.add(report);
            busy |= report.busy();
            report.measurements().forEach(each -> measurements.add(labelled(each, part.label())));
            if (closed.get(i)) {
                failed.set(i);
                for (Load load : loadsOf(i)) {
                    invalid.addAll(load.blocks());
                    received.add(load.requestId());
                }
            } else {
                invalid.addAll(report.invalidBlocks());
                loadsOf(i).stream().filter(Load::withinStep).forEach(load -> received.add(load.requestId()));
                takeReceived(i, report, received, hidden, measurements);
                unverified.addAll(report.unverified());
            }
        }
        received.forEach(loading::remove);
        Set<String> sent = released;
        released = Set.of();
        unverified.retainAll(received);
        return new WorkerReport(
                sent,
                received,
                invalid,
                hidden,
                measurements,
                busy,
                Optional.of(new MultiReport(own, failed)),
                unverified);
    }

    /** Takes the received requests and hidden states that the child was to load. */
    private void takeReceived(
            int child,
            WorkerReport report,
            Set<String> received,
            Map<String, HiddenState> hidden,
            List<Measurement> measurements) {
        for (String request : report.received()) {
            Load load = loading.get(request);
            if (load != null && load.child() == child) {
                received.add(request);
            } else {
                measurements.add(Measurement.count("baton:kv_unknown_reports", 1));
            }
        }
        report.hidden().forEach((request, state) -> {
            Load load = loading.get(request);
            if (load != null && load.child() == child) {
                hidden.put(request, state);
            }
        });
    }

    private List<Load> loadsOf(int child) {
        return loading.values().stream().filter(load -> load.child() == child).toList();
    }

    /** A child's measurement, with the child's name as a label; of a child of a child, with both names. */
    static Measurement labelled(Measurement own, String label) {
        Map<String, String> labels = new TreeMap<>(own.labels());
        labels.merge(LABEL, label, (inner, outer) -> outer + "/" + inner);
        return new Measurement(own.name(), own.kind(), own.value(), labels, own.requestId());
    }

    /** Closes all children, although some may throw. */
    @Override
    public void close() {
        List<Runnable> left = new ArrayList<>();
        notClosed.ifPresent(failure -> left.add(() -> {
            throw failure;
        }));
        for (int i = closed.nextClearBit(0); i < parts.size(); i = closed.nextClearBit(i + 1)) {
            left.add(parts.get(i).connector()::close);
        }
        closed.set(0, parts.size());
        closeAll(left);
    }

    /** Runs all, and then throws the first throwable. */
    static void closeAll(List<Runnable> closes) {
        List<Throwable> thrown = new ArrayList<>();
        for (Runnable close : closes) {
            try {
                close.run();
            } catch (RuntimeException | Error e) {
                thrown.add(e);
            }
        }
        if (thrown.isEmpty()) {
            return;
        }
        Throwable first = thrown.getFirst();
        new HashSet<>(thrown.subList(1, thrown.size())).forEach(first::addSuppressed);
        if (first instanceof Error error) {
            throw error;
        }
        throw (RuntimeException) first;
    }
}
