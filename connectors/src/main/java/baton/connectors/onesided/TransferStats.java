package baton.connectors.onesided;

import baton.kv.Percentiles;
import baton.kv.connector.Measurement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Metrics of a worker's transfers, and vLLM's summary in the log every 10 seconds. */
public final class TransferStats {
    private static final Logger log = LoggerFactory.getLogger(TransferStats.class);
    private static final long LOG_NANOS = Duration.ofSeconds(10).toNanos();
    /** The limit of transfers that the next log line covers. */
    private static final int MOST = 10_000;

    private record Sample(double seconds, double postSeconds, long bytes) {}

    private final String prefix;
    private final String label;
    private final boolean posts;
    private final List<Measurement> measurements = new ArrayList<>();
    private final List<Sample> samples = new ArrayList<>();
    private long descriptors;
    private long lineNanos;

    /**
     * @param prefix with which the names of the connector's metrics begin, as {@code vllm:nixl_}
     * @param label of the connector in the log, as {@code NIXL}
     * @param posts whether the connector has a metric {@code post_time}, of which vLLM's Mooncake connector has none
     */
    public TransferStats(String prefix, String label, boolean posts, long now) {
        this.prefix = prefix;
        this.label = label;
        this.posts = posts;
        lineNanos = now;
    }

    /** Name of the connector in the log. */
    String label() {
        return label;
    }

    /**
     * A transfer is done.
     *
     * @param post the time to start it
     */
    public void transferred(Duration elapsed, Duration post, long bytes, int ranges) {
        double seconds = elapsed.toNanos() / 1e9;
        double postSeconds = post.toNanos() / 1e9;
        measurements.add(Measurement.seconds(prefix + "xfer_time", seconds));
        if (posts) {
            measurements.add(Measurement.seconds(prefix + "post_time", postSeconds));
        }
        measurements.add(Measurement.bytes(prefix + "bytes_transferred", bytes));
        measurements.add(Measurement.items(prefix + "num_descriptors", ranges));
        if (samples.size() < MOST) {
            samples.add(new Sample(seconds, postSeconds, bytes));
            descriptors += ranges;
        }
    }

    /** A phase of a hand-over is done; see {@link #handoverPhase}. */
    public void handover(String phase, Duration took) {
        measurements.add(handoverPhase(phase, took.toNanos()));
    }

    /**
     * The duration of a phase of a hand-over. The owner's phases: {@code seal} from a step's forward pass until the checksums of the blocks
     * that it completed are written and reported, {@code answer} from then to the reference. The reader's, one after the other: {@code queue}
     * until the load is given to the workers, {@code handshake} until the owner is connected, {@code blocks}, {@code seals} (the owner's
     * checksums) and {@code check} until these are done, and {@code start} until the step that computes the first token.
     */
    public static Measurement handoverPhase(String phase, long nanos) {
        return new Measurement("baton:kv_handover", Measurement.Kind.SECONDS, nanos / 1e9, Map.of("phase", phase));
    }

    /** Counts a transfer that failed. */
    public void failedTransfer() {
        count(prefix + "num_failed_transfers");
    }

    /** Counts and logs a notification that could not be sent. */
    void failedNotification(String to, @Nullable String message) {
        countFailedNotification();
        logFailure("notification_failed", message, Map.of("to", to));
    }

    /** Counts a notification that could not be sent. */
    void countFailedNotification() {
        count(prefix + "num_failed_notifications");
    }

    /** Counts a lease that expired. */
    void expiredLease() {
        count(prefix + "num_kv_expired_reqs");
    }

    /** Counts a notification about blocks that are not leased, or not any more. */
    void notificationAfterExpiry() {
        count(prefix + "num_notifications_after_expiry");
    }

    /** Logs a failure as vLLM does. */
    void logFailure(String type, @Nullable String message, Map<String, Object> about) {
        log.warn(
                "{} transfer failure: {}. {} | Context: {}",
                label,
                type,
                message,
                new TreeMap<>(about)
                        .entrySet().stream()
                                .map(entry -> entry.getKey() + "=" + entry.getValue())
                                .collect(Collectors.joining(", ", "{", "}")));
    }

    public void count(String name) {
        measurements.add(Measurement.count(name, 1));
    }

    public void add(Measurement measurement) {
        measurements.add(measurement);
    }

    public List<Measurement> take() {
        List<Measurement> taken = List.copyOf(measurements);
        measurements.clear();
        return taken;
    }

    /** Writes the line if it is time for it and there is something to say. */
    public void log(long now) {
        if (now - lineNanos < LOG_NANOS) {
            return;
        }
        if (!samples.isEmpty()) {
            log.info(line((now - lineNanos) / 1e9));
        }
        samples.clear();
        descriptors = 0;
        lineNanos = now;
    }

    /** @param interval seconds since the line before */
    String line(double interval) {
        int count = samples.size();
        double megabytes = samples.stream().mapToLong(Sample::bytes).sum() / (1024.0 * 1024.0);
        double[] seconds =
                samples.stream().mapToDouble(Sample::seconds).sorted().toArray();
        double[] posts =
                samples.stream().mapToDouble(Sample::postSeconds).sorted().toArray();
        return String.format(
                Locale.ROOT,
                "KV Transfer metrics: Num successful transfers=%d, Avg xfer time (ms)=%.3f, P90 xfer time (ms)=%.3f, "
                        + "Avg post time (ms)=%.3f, P90 post time (ms)=%.3f, Avg MB per transfer=%.3f, Throughput (MB/s)=%.3f, "
                        + "Avg number of descriptors=%.1f",
                count,
                mean(seconds) * 1e3,
                Percentiles.of(seconds, 90) * 1e3,
                mean(posts) * 1e3,
                Percentiles.of(posts, 90) * 1e3,
                megabytes / count,
                megabytes / interval,
                (double) descriptors / count);
    }

    private static double mean(double[] values) {
        return Arrays.stream(values).average().orElse(0);
    }
}
