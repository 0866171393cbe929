package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Timing;
import baton.engine.model.Checkpoint;
import baton.engine.model.Device;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.kv.Require;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures how much two instances on the same processors slow each other down: forward passes of one, of the other, and of both at once, in turns. Each has
 * weights, a KV pool and threads of its own, as two processes would.
 */
public final class NeighbourBench {
    private static final int ROUNDS = 3;
    private static final int PREFILL_TOKENS = 512;
    private static final int DECODE_BATCH = 8;
    private static final String PREFILL = "prefill " + PREFILL_TOKENS;
    private static final String DECODE = "decode batch " + DECODE_BATCH;
    private static final Duration END = Duration.ofMinutes(1);

    private final int threads;
    private final Duration each;
    private final Consumer<String> progress;

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head("two instances of {threads} threads on {processors} processors; together, of one alone")
            .table(
                    "",
                    "pairs",
                    Column.of("", "{first} beside {second}"),
                    Column.of("median", "{share|%.2f}"),
                    Column.of("least", "{least|%.2f}"),
                    Column.of("most", "{most|%.2f}"));

    /**
     * @param threads of each of the two
     * @param each how long each measurement takes; there are 27
     * @param progress receives a line for each step
     */
    public NeighbourBench(int threads, Duration each, Consumer<String> progress) {
        Require.positive("threads", threads);
        Require.positive("seconds", each);
        this.threads = threads;
        this.each = each;
        this.progress = progress;
    }

    /**
     * Measures. A share is of each round: passes a second of the first while the second runs, divided by those of the first alone, plus the
     * same quotient of the second; 1 means that nothing is lost.
     *
     * @throws IOException if the checkpoint cannot be read
     */
    public void run(Path model, ObjectNode json) throws IOException, InterruptedException {
        json.put("threads", threads).put("processors", Runtime.getRuntime().availableProcessors());
        ArrayNode pairs = json.putArray("pairs");
        try (Instance one = new Instance(model);
                Instance other = new Instance(model)) {
            for (String[] loads : new String[][] {{PREFILL, PREFILL}, {PREFILL, DECODE}, {DECODE, DECODE}}) {
                ObjectNode pair = pairs.addObject().put("first", loads[0]).put("second", loads[1]);
                List<Double> shares = new ArrayList<>();
                for (int round = 1; round <= ROUNDS; round++) {
                    progress.accept("%s beside %s: round %d of %d".formatted(loads[0], loads[1], round, ROUNDS));
                    double first = await(one.rate(loads[0], new CountDownLatch(1)));
                    double second = await(other.rate(loads[1], new CountDownLatch(1)));
                    CountDownLatch both = new CountDownLatch(2);
                    Future<Double> beside = one.rate(loads[0], both);
                    shares.add(await(other.rate(loads[1], both)) / second + await(beside) / first);
                    pair.put("share", Timing.median(shares))
                            .put("least", Collections.min(shares))
                            .put("most", Collections.max(shares));
                }
            }
        }
    }

    private <T> T await(Future<T> future) throws IOException, InterruptedException {
        try {
            return future.get(END.plus(each).toNanos(), TimeUnit.NANOSECONDS);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof IOException cause) {
                throw cause;
            }
            throw new IllegalStateException(e.getCause());
        } catch (TimeoutException e) {
            throw new IOException("an instance has not answered within " + END.plus(each), e);
        }
    }

    /** A model and the thread that loads it and computes with it. */
    private final class Instance implements AutoCloseable {
        private final ExecutorService thread = Executors.newSingleThreadExecutor(
                Thread.ofPlatform().daemon().name("neighbour").factory());
        private final ModelRunner runner;

        Instance(Path model) throws IOException, InterruptedException {
            try {
                runner = await(thread.submit(() -> {
                    try (Checkpoint checkpoint = Checkpoint.open(model)) {
                        int positions =
                                Math.min(PREFILL_TOKENS, checkpoint.config().maxPositions());
                        return ForwardBench.load(
                                checkpoint,
                                Device.CPU,
                                Optional.empty(),
                                Quantization.NONE,
                                OptionalInt.of(threads),
                                positions);
                    }
                }));
            } catch (IOException | InterruptedException | RuntimeException e) {
                thread.shutdown();
                throw e;
            }
        }

        /**
         * Passes a second.
         *
         * @param all those measured at once, which go on until the last has been measured
         */
        Future<Double> rate(String load, CountDownLatch all) {
            return thread.submit(() -> {
                try {
                    List<SequenceSlice> slices = slices(load);
                    pass(slices);
                    long start = System.nanoTime();
                    long end = start;
                    int passes = 0;
                    while (passes == 0 || end - start < each.toNanos()) {
                        pass(slices);
                        passes++;
                        end = System.nanoTime();
                    }
                    all.countDown();
                    while (all.getCount() > 0) {
                        pass(slices);
                    }
                    return passes / ((end - start) * 1e-9);
                } catch (Throwable e) {
                    all.countDown();
                    throw e;
                }
            });
        }

        private void pass(List<SequenceSlice> slices) {
            runner.forward(slices, LayerHooks.NONE).close();
        }

        private List<SequenceSlice> slices(String load) {
            return load.equals(PREFILL)
                    ? List.of(ForwardBench.slice(
                            0, 0, Math.min(PREFILL_TOKENS, runner.config().maxPositions())))
                    : IntStream.range(0, DECODE_BATCH)
                            .mapToObj(sequence -> ForwardBench.slice(sequence, ForwardBench.DECODE_CONTEXT - 1, 1))
                            .toList();
        }

        @Override
        public void close() {
            // On the thread that has loaded it.
            var _ = thread.submit(runner::close);
            thread.shutdown();
            try {
                var _ = thread.awaitTermination(END.toSeconds(), TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
