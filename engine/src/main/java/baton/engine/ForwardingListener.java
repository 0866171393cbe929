package baton.engine;

import baton.kv.DType;
import baton.kv.KvEvent;
import baton.kv.connector.Measurement;
import java.util.List;
import java.util.function.Consumer;

/** Passes each event on to other listeners. */
public abstract class ForwardingListener implements EngineListener {
    /** @param event calls the method of a listener that was called of this one */
    protected abstract void pass(Consumer<EngineListener> event);

    @Override
    public void onStart(EngineConfig config, int maxModelLen, DType dtype, int blocks) {
        pass(to -> to.onStart(config, maxModelLen, dtype, blocks));
    }

    @Override
    public void onAllFinished(int n, int longestOutput) {
        pass(to -> to.onAllFinished(n, longestOutput));
    }

    @Override
    public void onStep(StepStats stats) {
        pass(to -> to.onStep(stats));
    }

    @Override
    public void onStepTimes(StepTimes times) {
        pass(to -> to.onStepTimes(times));
    }

    @Override
    public void onFirstToken(double seconds, PromptTokens prompt) {
        pass(to -> to.onFirstToken(seconds, prompt));
    }

    @Override
    public void onNextToken(double seconds) {
        pass(to -> to.onNextToken(seconds));
    }

    @Override
    public void onFinished(RequestStats stats) {
        pass(to -> to.onFinished(stats));
    }

    @Override
    public void onMeasurements(List<Measurement> measurements) {
        pass(to -> to.onMeasurements(measurements));
    }

    @Override
    public void onKvEvents(List<KvEvent> events) {
        pass(to -> to.onKvEvents(events));
    }
}
