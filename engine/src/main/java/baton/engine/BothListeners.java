package baton.engine;

import baton.kv.DType;
import baton.kv.KvEvent;
import baton.kv.connector.Measurement;
import java.util.List;

/** Passes each event to two listeners. */
record BothListeners(EngineListener first, EngineListener second) implements EngineListener {
    @Override
    public void onStart(EngineConfig config, int maxModelLen, DType dtype, int blocks) {
        first.onStart(config, maxModelLen, dtype, blocks);
        second.onStart(config, maxModelLen, dtype, blocks);
    }

    @Override
    public void onAllFinished(int n, int longestOutput) {
        first.onAllFinished(n, longestOutput);
        second.onAllFinished(n, longestOutput);
    }

    @Override
    public void onStep(StepStats stats) {
        first.onStep(stats);
        second.onStep(stats);
    }

    @Override
    public void onStepTimes(StepTimes times) {
        first.onStepTimes(times);
        second.onStepTimes(times);
    }

    @Override
    public void onFirstToken(double seconds, PromptTokens prompt) {
        first.onFirstToken(seconds, prompt);
        second.onFirstToken(seconds, prompt);
    }

    @Override
    public void onNextToken(double seconds) {
        first.onNextToken(seconds);
        second.onNextToken(seconds);
    }

    @Override
    public void onFinished(RequestStats stats) {
        first.onFinished(stats);
        second.onFinished(stats);
    }

    @Override
    public void onMeasurements(List<Measurement> measurements) {
        first.onMeasurements(measurements);
        second.onMeasurements(measurements);
    }

    @Override
    public void onKvEvents(List<KvEvent> events) {
        first.onKvEvents(events);
        second.onKvEvents(events);
    }
}
