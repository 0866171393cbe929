package baton.kv.connector;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Counters that begin at 0 again when they are taken. Thread-safe. */
public final class Counts {
    private record Counter(String name, Map<String, String> labels) {}

    @GuardedBy("this")
    private final Map<Counter, Long> counts = new LinkedHashMap<>();

    public void add(String name, long more) {
        add(name, more, Map.of());
    }

    public void add(String name, long more, String label, String labelValue) {
        add(name, more, Map.of(label, labelValue));
    }

    /** @param labels label names and values */
    public synchronized void add(String name, long more, Map<String, String> labels) {
        if (more != 0) {
            counts.merge(new Counter(name, labels), more, Long::sum);
        }
    }

    /** The counts since the last call, those at 0 left out, in a list that may be added to. */
    public synchronized List<Measurement> take() {
        List<Measurement> taken = new ArrayList<>();
        counts.forEach((counter, count) ->
                taken.add(new Measurement(counter.name, Measurement.Kind.COUNTER, count, counter.labels)));
        counts.clear();
        return taken;
    }
}
