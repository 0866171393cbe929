package baton.bench;

import baton.engine.EngineListener;
import baton.kv.connector.Measurement;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Measurements that the engine reports of a hand-over, in seconds by phase. */
final class HandoverRecorder implements EngineListener {
    @GuardedBy("this")
    private final Map<String, Double> spans = new HashMap<>();

    @GuardedBy("this")
    private long sealed;

    synchronized void clear() {
        spans.clear();
    }

    /** When the last span of the name {@code seal} ended. */
    synchronized long sealed() {
        return sealed;
    }

    synchronized Map<String, Double> take() {
        Map<String, Double> taken = new HashMap<>(spans);
        spans.clear();
        return taken;
    }

    @Override
    public synchronized void onMeasurements(List<Measurement> measurements) {
        for (Measurement each : measurements) {
            if (each.name().equals("baton:kv_handover")) {
                spans.put(each.labels().getOrDefault("phase", ""), each.value());
                sealed = each.labels().containsValue("seal") ? System.nanoTime() : sealed;
            } else if (each.name().equals("vllm:nixl_xfer_time")) {
                spans.put("transfer", each.value());
            }
        }
        notifyAll();
    }

    @Override
    public synchronized void onFinished(RequestStats stats) {
        spans.put("to first step", stats.queueSeconds());
    }

    /** A span that comes after the request's end. */
    synchronized double await(String span) throws InterruptedException, IOException {
        long deadline = System.nanoTime() + HandoverBench.DEADLINE.toNanos();
        while (!spans.containsKey(span)) {
            long left = deadline - System.nanoTime();
            if (left <= 0) {
                throw new IOException("no span " + span + " was recorded");
            }
            TimeUnit.NANOSECONDS.timedWait(this, left);
        }
        return spans.getOrDefault(span, 0.0);
    }
}
