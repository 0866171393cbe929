package baton.store.tiered;

import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Counters of the movement between tiers, by the names of vLLM 0.33's tiering metrics. Thread-safe. */
final class TierStats {
    private static final String TIER = "tier";

    private final String prefix;
    private final List<String> names;

    @GuardedBy("this")
    private final List<Measurement> taken = new ArrayList<>();

    private final Counts counts = new Counts();

    @GuardedBy("this")
    private final int[] promotions;

    @GuardedBy("this")
    private final int[] cascades;

    /** @param names labels of the tiers, the memory first */
    TierStats(String prefix, List<String> names) {
        this.prefix = prefix;
        this.names = List.copyOf(names);
        promotions = new int[names.size()];
        cascades = new int[names.size()];
    }

    void queried(int tier, long asked, long found) {
        counts.add(prefix + "chunk_queries", asked, TIER, names.get(tier));
        counts.add(prefix + "chunk_hits", found, TIER, names.get(tier));
    }

    synchronized void lookedUp(double seconds) {
        taken.add(Measurement.seconds(prefix + "lookup_async_delay_seconds", seconds));
    }

    void noRoom() {
        counts.add(prefix + "promotion_allocation_failures", 1);
    }

    synchronized void promoting(int tier, int change) {
        promotions[tier] += change;
        taken.add(gauge("active_promotion_jobs", tier, promotions[tier]));
    }

    synchronized void cascading(int tier, int change) {
        cascades[tier] += change;
        taken.add(gauge("active_cascade_jobs", tier, cascades[tier]));
    }

    synchronized void read(int tier, long bytes, double seconds, boolean complete) {
        taken.add(count("read_bytes", tier, bytes));
        taken.add(count("read_time", tier, seconds));
        taken.add(new Measurement(
                prefix + "promotion_latency_seconds",
                Measurement.Kind.SECONDS,
                seconds,
                Map.of(TIER, names.get(tier), "result", complete ? "success" : "failure")));
        if (!complete) {
            taken.add(count("promotion_job_failures", tier, 1));
        }
    }

    synchronized void written(int tier, long bytes, double seconds, boolean complete) {
        taken.add(count("write_bytes", tier, bytes));
        taken.add(count("write_time", tier, seconds));
        if (!complete) {
            taken.add(count("cascade_job_failures", tier, 1));
        }
    }

    synchronized void dropped(int tier, long values) {
        taken.add(count("backpressure_stores_dropped", tier, 1));
        taken.add(count("backpressure_blocks_dropped", tier, values));
    }

    synchronized void pressure(int tier, double average, int failures) {
        taken.add(gauge("backpressure_store_latency_ema", tier, average));
        taken.add(Measurement.gauge("baton:kv_offload_consecutive_store_failures", failures, TIER, names.get(tier)));
    }

    synchronized List<Measurement> take() {
        List<Measurement> all = counts.take();
        all.addAll(taken);
        taken.clear();
        return all;
    }

    private Measurement count(String name, int tier, double value) {
        return Measurement.count(prefix + name, value, TIER, names.get(tier));
    }

    private Measurement gauge(String name, int tier, double value) {
        return new Measurement(prefix + name, Measurement.Kind.GAUGE, value, Map.of(TIER, names.get(tier)));
    }
}
