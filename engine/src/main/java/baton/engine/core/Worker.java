package baton.engine.core;

import baton.engine.StepPhase;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Logits;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.Comparison;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.KvFence;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;

/** Runs steps on one rank: the model, and around its layers the connector. */
final class Worker {
    private final ModelRunner runner;
    private final Optional<WorkerConnector> connector;
    private final StepClock clock;
    private final LayerHooks hooks;
    private final boolean wantsHidden;
    /** The requests, by the index of their slice, for which the connector wants the hidden state of the last token. */
    private Map<Integer, String> hiddenOf = Map.of();
    /** Loaded tokens to compare, by the index of their request's slice. */
    private Map<Integer, LoadedTokens> loaded = Map.of();

    private Comparison comparison = Comparison.NONE;

    Worker(ModelRunner runner, Optional<WorkerConnector> connector, StepClock clock) {
        this.runner = runner;
        this.connector = connector;
        this.clock = clock;
        this.hooks = connector.map(c -> around(c, clock)).orElseGet(() -> around(clock));
        connector.ifPresent(c -> c.register(runner.cache()));
        this.wantsHidden = connector.map(WorkerConnector::wantsHidden).orElse(false);
    }

    /** Whether the connector wants hidden states. */
    boolean wantsHidden() {
        return wantsHidden;
    }

    ParallelFor threads() {
        return runner.threads();
    }

    boolean takes(HiddenState state) {
        return runner.takes(state);
    }

    /** Begins a step: the connector starts its loads. */
    void startLoad(ConnectorMetadata metadata) {
        clock.enter(StepPhase.CONNECTOR);
        connector.ifPresent(c -> c.startLoad(metadata));
    }

    /**
     * Computes a step.
     *
     * @param hiddenOf the requests with a prompt that ends with a slice, by its index; empty if no connector needs them
     * @param loaded tokens of slices to compare with the model's, by its index; empty unless the runner can
     * @return its logits; the caller closes them
     */
    Logits forward(List<SequenceSlice> slices, Map<Integer, String> hiddenOf, Map<Integer, LoadedTokens> loaded) {
        this.hiddenOf = hiddenOf;
        this.loaded = loaded;
        this.comparison = Comparison.NONE;
        clock.enter(StepPhase.BATCH);
        Logits logits = runner.forward(slices, hooks);
        clock.enter(StepPhase.CONNECTOR);
        return logits;
    }

    /** The comparison of the loaded tokens of the last step. */
    Comparison comparison() {
        return comparison;
    }

    /** Logits of these requests are not finite: the connector saves nothing of them. */
    void discardSaves(Set<String> requestIds) {
        connector.ifPresent(c -> c.discardSaves(requestIds));
    }

    /** Ends a step that all ranks have computed: the connector finishes its saves. */
    void waitForSave() {
        connector.ifPresent(WorkerConnector::waitForSave);
    }

    /** The connector's report, this step's loads and saves included. */
    WorkerReport report(Set<String> finished) {
        clock.enter(StepPhase.CONNECTOR);
        return connector.map(c -> c.report(finished)).orElse(WorkerReport.NOTHING);
    }

    void closeConnector() {
        connector.ifPresent(WorkerConnector::close);
    }

    void closeRunner() {
        runner.close();
    }

    private LayerHooks around(WorkerConnector connector, StepClock clock) {
        return new LayerHooks() {
            @Override
            public void begin() {
                clock.enter(StepPhase.MODEL);
            }

            @Override
            public KvFence beforeLayer(int layer) {
                clock.enter(StepPhase.CONNECTOR);
                KvFence loaded = connector.layerLoaded(layer);
                clock.enter(StepPhase.MODEL);
                return loaded;
            }

            @Override
            public void afterLayer(int layer, KvFence computed) {
                clock.enter(StepPhase.CONNECTOR);
                connector.saveLayer(layer, computed);
                clock.enter(StepPhase.MODEL);
            }

            @Override
            public Map<Integer, LoadedTokens> loaded() {
                return loaded;
            }

            @Override
            public void compared(Comparison result) {
                comparison = result;
            }

            @Override
            public Set<Integer> hiddenWanted() {
                return hiddenOf.keySet();
            }

            @Override
            public void hidden(int slice, HiddenState state) {
                clock.enter(StepPhase.CONNECTOR);
                connector.saveHidden(Objects.requireNonNull(hiddenOf.get(slice)), state);
                clock.enter(StepPhase.MODEL);
            }
        };
    }

    private static LayerHooks around(StepClock clock) {
        return new LayerHooks() {
            @Override
            public void begin() {
                clock.enter(StepPhase.MODEL);
            }
        };
    }
}
