package baton.engine.local;

import baton.engine.EngineListener;
import baton.engine.ForwardingListener;
import baton.kv.KvEvent;
import baton.kv.connector.Measurement;
import java.util.List;
import java.util.function.Consumer;

/**
 * Passes events to a listener that can be exchanged. Connectors' measurements and events are always passed to the first: warm-up requests
 * cause none.
 */
final class RedirectedListener extends ForwardingListener {
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
    protected void pass(Consumer<EngineListener> event) {
        event.accept(current);
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
