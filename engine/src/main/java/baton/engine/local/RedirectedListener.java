package baton.engine.local;

import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.kv.DType;
import baton.kv.KvEvent;
import baton.kv.connector.Measurement;
import java.util.List;

/** Passes events to a listener that can be exchanged. Connectors' measurements and events always go to the first: warm-up requests cause none. */
final class RedirectedListener implements EngineListener {
    private final EngineListener first;
    private EngineListener current;

    RedirectedListener(EngineListener first) {
        this.first = first;
        this.current = first;
    }

    void tell(EngineListener listener) {
        current = listener;
    }

    @Override
    public void onStart(EngineConfig config, int maxModelLen, DType dtype, int blocks) {
        current.onStart(config, maxModelLen, dtype, blocks);
    }

    @Override
    public void onStep(StepStats stats) {
        current.onStep(stats);
    }

    @Override
    public void onStepTimes(StepTimes times) {
        current.onStepTimes(times);
    }

    @Override
    public void onFirstToken(double seconds, PromptTokens prompt) {
        current.onFirstToken(seconds, prompt);
    }

    @Override
    public void onNextToken(double seconds) {
        current.onNextToken(seconds);
    }

    @Override
    public void onFinished(RequestStats stats) {
        current.onFinished(stats);
    }

    @Override
    public void onAllFinished(int n, int longestOutput) {
        current.onAllFinished(n, longestOutput);
    }

    @Override
    public void onMeasurements(List<Measurement> measurements) {
        first.onMeasurements(measurements);
    }

    @Override
    public void onKvEvents(List<KvEvent> events) {
        first.onKvEvents(events);
    }
}
