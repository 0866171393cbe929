package baton.bench.frame;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

/** Cases that are measured in turns, so that a disturbance of the machine meets all of them. */
public final class Rounds {
    private final Map<String, Case> cases = new LinkedHashMap<>();
    private final Map<String, List<Double>> values = new LinkedHashMap<>();

    /** One measurement. */
    public interface Case {
        /** The measured value: seconds, or a rate. */
        double run() throws Exception;
    }

    /** Adds a case; its turn is after those that were added before. */
    public Rounds add(String name, Case one) {
        cases.put(name, one);
        return this;
    }

    /**
     * Runs each case so often without keeping its values.
     *
     * @throws IOException from a case
     */
    public void warmUp(int times) throws IOException {
        for (int i = 0; i < times; i++) {
            for (Case each : cases.values()) {
                run(each);
            }
        }
    }

    /**
     * Runs each case in each round at least once, and again until its share of the time is over.
     *
     * @param write writes the figures of the rounds so far
     */
    public void run(int rounds, Duration each, Runnable write) throws IOException {
        long share = each.dividedBy(rounds).toNanos();
        for (int round = 0; round < rounds; round++) {
            for (Map.Entry<String, Case> one : cases.entrySet()) {
                long end = System.nanoTime() + share;
                do {
                    add(one.getKey(), run(one.getValue()));
                } while (System.nanoTime() < end);
            }
            write.run();
        }
    }

    /** Keeps a value that was measured elsewhere. */
    public void add(String name, double value) {
        values.computeIfAbsent(name, _ -> new ArrayList<>()).add(value);
    }

    /** The values of a case in their order; empty if it was not measured. */
    public List<Double> values(String name) {
        return Collections.unmodifiableList(values.getOrDefault(name, List.of()));
    }

    /** The times of each case that was measured. */
    public void forEach(BiConsumer<String, Timing> use) {
        values.forEach((name, seconds) -> use.accept(name, Timing.of(seconds)));
    }

    /** Runs a case; a checked exception of another kind becomes an {@link IOException} with the same message. */
    public static double run(Case one) throws IOException {
        try {
            return one.run();
        } catch (IOException | RuntimeException e) {
            throw e;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        } catch (Exception e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    /** Seconds that an action takes, by the clock. */
    public static double seconds(Action action) throws Exception {
        long begun = System.nanoTime();
        action.run();
        return (System.nanoTime() - begun) / (double) TimeUnit.SECONDS.toNanos(1);
    }

    /** The timed code. */
    public interface Action {
        void run() throws Exception;
    }
}
