package baton.connectors.nixl;

import baton.kv.connector.Measurement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What a worker's transfers took: as metrics of vLLM's names, and as vLLM's line in the log every now and then. */
final class TransferStats {
    private static final Logger log = LoggerFactory.getLogger(TransferStats.class);
    private static final long LOG_NANOS = Duration.ofSeconds(10).toNanos();
    /** So many are remembered for the next line. */
    private static final int MOST = 10_000;

    private record Sample(double seconds, double postSeconds, long bytes) {}

    private final List<Measurement> measurements = new ArrayList<>();
    private final List<Sample> samples = new ArrayList<>();
    private long descriptors;
    private long lineNanos;

    TransferStats(long now) {
        lineNanos = now;
    }

    /**
     * A transfer is done.
     *
     * @param post what it took to start it
     */
    void transferred(Duration elapsed, Duration post, long bytes, int ranges) {
        double seconds = elapsed.toNanos() / 1e9;
        double postSeconds = post.toNanos() / 1e9;
        measurements.add(Measurement.seconds("vllm:nixl_xfer_time", seconds));
        measurements.add(Measurement.seconds("vllm:nixl_post_time", postSeconds));
        measurements.add(Measurement.bytes("vllm:nixl_bytes_transferred", bytes));
        measurements.add(Measurement.items("vllm:nixl_num_descriptors", ranges));
        if (samples.size() < MOST) {
            samples.add(new Sample(seconds, postSeconds, bytes));
            descriptors += ranges;
        }
    }

    /** A phase of a hand-over is done; see {@link #handoverPhase}. */
    void handover(String phase, Duration took) {
        measurements.add(handoverPhase(phase, took.toNanos()));
    }

    /**
     * What a phase of a hand-over took. The owner's: {@code seal} from a step's forward pass until what it completed is sealed
     * and told, {@code answer} from then to the reference. The reader's, one after the other: {@code queue} until the load is given to the workers,
     * {@code handshake} until the owner is connected, {@code blocks}, {@code seals} and {@code check} until these are done, and {@code start}
     * until the step that computes the first token.
     */
    static Measurement handoverPhase(String phase, long nanos) {
        return new Measurement("baton:kv_handover", Measurement.Kind.SECONDS, nanos / 1e9, Map.of("phase", phase));
    }

    void count(String name) {
        measurements.add(Measurement.count(name, 1));
    }

    void add(Measurement measurement) {
        measurements.add(measurement);
    }

    List<Measurement> take() {
        List<Measurement> taken = List.copyOf(measurements);
        measurements.clear();
        return taken;
    }

    /** Writes the line if it is time for it and there is something to say. */
    void log(long now) {
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

    private String line(double interval) {
        int count = samples.size();
        double megabytes = samples.stream().mapToLong(Sample::bytes).sum() / (1024.0 * 1024.0);
        List<Double> seconds = samples.stream().map(Sample::seconds).sorted().toList();
        List<Double> posts = samples.stream().map(Sample::postSeconds).sorted().toList();
        return String.format(
                Locale.ROOT,
                "KV Transfer metrics: Num successful transfers=%d, Avg xfer time (ms)=%.3f, P90 xfer time (ms)=%.3f, "
                        + "Avg post time (ms)=%.3f, P90 post time (ms)=%.3f, Avg MB per transfer=%.3f, Throughput (MB/s)=%.3f, "
                        + "Avg number of descriptors=%.1f",
                count,
                mean(seconds) * 1e3,
                ninetieth(seconds) * 1e3,
                mean(posts) * 1e3,
                ninetieth(posts) * 1e3,
                megabytes / count,
                megabytes / interval,
                (double) descriptors / count);
    }

    private static double mean(List<Double> values) {
        return values.stream().mapToDouble(value -> value).average().orElse(0);
    }

    private static double ninetieth(List<Double> sorted) {
        return sorted.get((sorted.size() - 1) * 9 / 10);
    }
}
