package baton.bench;

import baton.bench.frame.Budget;
import baton.bench.frame.Timing;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Checkpoint;
import baton.engine.model.Device;
import baton.engine.model.MachineLimits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures forward passes of one model, without scheduler, sampler and server, and the machine's limits.
 *
 * <p>A pass cannot be stopped, and how long it takes is not known before. So each case is run once first, those with few tokens
 * before those with many, and only if by the time of the case before it fits into the budget. After that, in rounds, every case
 * has its share of the time that is left, saves it up until a pass is affordable, and is measured twice if that is possible at all.
 */
final class ForwardBench {
    static final int LONGEST_PREFILL = 2048;
    static final int DECODE_CONTEXT = 128;
    static final int[] DECODE_BATCHES = {1, 8, 32};
    static final int BLOCK_SIZE = 16;
    private static final int[] PREFILL_TOKENS = {512, LONGEST_PREFILL};
    /** The tokens of a case that is not reported: its time predicts the times of the other cases. */
    private static final int SHORT_PREFILL = 128;

    private static final int ROUNDS = 3;
    /** Share of the model's time for running each case once. */
    private static final double FIRST_SHARE = 0.8;
    /** Share of the time left after that; the rest is for requests through the engine. */
    private static final double ROUNDS_SHARE = 0.6;
    /** The shares that one {@link MachineLimits.Probe#measure} takes. */
    private static final int LIMITS_SHARES = 5;
    /** Passes beside products take twice as long as passes alone. */
    private static final int BESIDE_SHARES = 2;
    /** A pass, and products for as long before and after it. */
    private static final int BESIDE_PASSES = 3;

    private static final int MEASURED_AT_LEAST = 2;

    private final ModelRunner runner;
    private final ModelConfig config;
    private final MachineLimits.Probe probe;
    private final Budget model;
    private final Optional<Duration> each;
    private final Consumer<String> progress;
    private Budget budget;
    private final List<String> leftOut = new ArrayList<>();
    private final List<Case> cases = new ArrayList<>();
    private double secondsPerToken;

    /**
     * @param model the model's budget, of which something is to be left
     * @param each how long each limit and each case is measured at most, all rounds together
     * @param progress receives a line for each step
     */
    ForwardBench(
            ModelRunner runner,
            MachineLimits.Probe probe,
            Budget model,
            Optional<Duration> each,
            Consumer<String> progress) {
        this.runner = runner;
        this.config = runner.config();
        this.probe = probe;
        this.model = model;
        this.budget = model.share(ROUNDS_SHARE);
        this.each = each;
        this.progress = progress;
    }

    /** Loads a model with room for a prompt of so many positions, or for the largest batch that decodes. */
    static ModelRunner load(
            Checkpoint checkpoint,
            Device device,
            Optional<DType> dtype,
            Quantization quantization,
            OptionalInt threads,
            int positions)
            throws IOException {
        ModelBackend backend =
                ModelBackends.computing(ModelBackends.on(device), device, checkpoint.config(), quantization, 1);
        DType type = backend.dtype(dtype, checkpoint.config(), quantization).dtype();
        KvLayout layout = checkpoint.config().kvLayout(BLOCK_SIZE, type);
        int blocks = Math.max(
                layout.blocksFor(positions),
                layout.blocksFor(DECODE_CONTEXT)
                        * IntStream.of(DECODE_BATCHES).max().orElseThrow());
        return backend.load(
                        checkpoint, ModelOptions.oneRank(type, quantization, BLOCK_SIZE, blocks, threads, positions))
                .first();
    }

    /** Whether this machine's processor computes the model, so that its limits are the model's. */
    static boolean computes(ModelRunner runner) {
        return !(runner.cache().memory() instanceof KvMemory.Device);
    }

    /** A pass between matrix products. {@code gemmFlops}: operations a second of the products before and after it. */
    record Beside(double seconds, double gemmFlops) {}

    /**
     * A prefill.
     *
     * @param flops operations that it takes
     */
    record Prefill(int tokens, double flops, List<Double> seconds, List<Beside> beside) {
        void write(ObjectNode node) {
            Timing timing = Timing.of(seconds);
            EngineFigures.rate(node.put("tokens", tokens), timing, tokens)
                    .put("flops_per_second", flops / timing.best());
            if (!beside.isEmpty()) {
                List<Double> shares = beside.stream()
                        .map(pass -> flops / pass.seconds / pass.gemmFlops)
                        .toList();
                node.put("share_of_gemm_beside", Timing.median(shares));
            }
        }
    }

    /**
     * A step that decodes a token of each of a batch of sequences.
     *
     * @param bytes that a step reads at least
     */
    record Decode(int batch, Timing timing, double bytes) {
        double tokensPerSecond() {
            return batch / timing.best();
        }
    }

    /**
     * Results.
     *
     * @param leftOut cases that the budget or the model had no room for, and why
     * @param secondsPerToken of a prefill
     */
    record Measured(
            List<MachineLimits> limits,
            List<Prefill> prefills,
            List<Decode> decodes,
            List<String> leftOut,
            double secondsPerToken) {
        void write(ObjectNode model) {
            ArrayNode prefill = model.putArray("prefill");
            prefills.forEach(each -> each.write(prefill.addObject()));
            ArrayNode decode = model.putArray("decode");
            for (Decode each : decodes) {
                EngineFigures.rate(
                                decode.addObject().put("batch", each.batch).put("context", DECODE_CONTEXT),
                                each.timing,
                                each.batch)
                        .put("bytes_per_second", each.bytes / each.timing.best())
                        .put(
                                "speed_up",
                                each.tokensPerSecond() / decodes.getFirst().tokensPerSecond());
            }
        }
    }

    Measured run(Quantization quantization) {
        List<MachineLimits> limits = new ArrayList<>();
        double limitsSeconds = 0;
        for (int round = 1; round <= ROUNDS && (round == 1 || budget.fits(limitsSeconds)); round++) {
            progress.accept("%s: round %d of %d".formatted(config.name(), round, ROUNDS));
            long start = System.nanoTime();
            limits.add(probe.measure(share(round)));
            limitsSeconds = (System.nanoTime() - start) * 1e-9;
            if (round == 1) {
                budget = model.share(FIRST_SHARE);
                tryCases();
                budget = model.share(ROUNDS_SHARE);
            }
            measureCases(round);
        }
        cases.forEach(this::measureOnceMore);
        int elementBytes = EngineBench.dtype(runner).bytes();
        int weightBytes = quantization == Quantization.INT8 ? 1 : elementBytes;
        return new Measured(
                List.copyOf(limits),
                cases.stream()
                        .filter(measured -> !measured.decode)
                        .map(prefill -> new Prefill(prefill.count, prefill.flops(), prefill.timed(), prefill.beside))
                        .toList(),
                cases.stream()
                        .filter(measured -> measured.decode)
                        .map(decode -> new Decode(
                                decode.count,
                                Timing.of(decode.timed()),
                                LeastWork.decodeBytes(config, decode.count, DECODE_CONTEXT, weightBytes, elementBytes)))
                        .toList(),
                List.copyOf(leftOut),
                secondsPerToken);
    }

    /** Runs each case once, as far as there is time and the model has positions; these passes also prepare kernels and caches. */
    private void tryCases() {
        List<Case> all = Stream.of(
                        IntStream.of(DECODE_BATCHES).mapToObj(batch -> new Case(true, batch)),
                        IntStream.of(SHORT_PREFILL).mapToObj(tokens -> new Case(false, tokens)),
                        IntStream.of(PREFILL_TOKENS).mapToObj(tokens -> new Case(false, tokens)))
                .flatMap(some -> some)
                .toList();
        double seconds = 0;
        double work = 1;
        for (Case next : all) {
            double expected = seconds * next.flops() / work;
            if (!next.decode && next.count > config.maxPositions()) {
                leave(next, "the model has max_position_embeddings=" + config.maxPositions());
            } else if (!budget.fits(expected)) {
                leave(next, budget.tooLittleFor(expected));
            } else {
                next.first = next.forward();
                seconds = next.first;
                work = next.flops();
                secondsPerToken = seconds / next.count;
                if (next.isReported()) {
                    cases.add(next);
                }
            }
        }
    }

    private void leave(Case left, String why) {
        if (left.isReported()) {
            leftOut.add("%s: %s: %s".formatted(config.name(), left, why));
        }
    }

    private void measureCases(int round) {
        for (Case measured : cases) {
            Duration share = share(round);
            measured.run(share, round == 1);
            if (!measured.decode && computes(runner)) {
                measured.runBeside(share.multipliedBy(BESIDE_SHARES), round == 1);
            }
        }
    }

    private void measureOnceMore(Case measured) {
        if (measured.seconds.size() < MEASURED_AT_LEAST && budget.fits(measured.last())) {
            measured.seconds.add(measured.forward());
        }
    }

    /** Time of one case in a round: an equal part of the time that is left. */
    private Duration share(int round) {
        int shares = LIMITS_SHARES + DECODE_BATCHES.length + PREFILL_TOKENS.length * (1 + BESIDE_SHARES);
        Duration part = budget.left().dividedBy((long) shares * (ROUNDS + 1 - round));
        return each.map(most -> most.dividedBy(ROUNDS))
                .filter(most -> most.compareTo(part) < 0)
                .orElse(part);
    }

    /** Sequence number {@code sequence} has blocks of its own, enough for the decode context or, being the first, for all. */
    static SequenceSlice slice(int sequence, int start, int length) {
        int blocks = Math.ceilDiv(start + length, BLOCK_SIZE);
        return new SequenceSlice(
                IntStream.range(0, length)
                        .map(i -> 5 + (131 * sequence + i) % 1000)
                        .toArray(),
                start,
                IntStream.range(blocks * sequence, blocks * (sequence + 1)).toArray(),
                1);
    }

    private static double seconds(Duration duration) {
        return duration.toNanos() * 1e-9;
    }

    private static Duration lasting(double seconds) {
        return Duration.ofNanos((long) (seconds * 1e9));
    }

    private final class Case {
        private final boolean decode;
        /** Sequences that decode, or tokens of the prompt. */
        private final int count;

        private final List<SequenceSlice> slices;
        private final List<Double> seconds = new ArrayList<>();
        private final List<Beside> beside = new ArrayList<>();
        private double first;
        private double saved;
        private double savedBeside;

        Case(boolean decode, int count) {
            this.decode = decode;
            this.count = count;
            slices = decode
                    ? IntStream.range(0, count)
                            .mapToObj(sequence -> slice(sequence, DECODE_CONTEXT - 1, 1))
                            .toList()
                    : List.of(slice(0, 0, count));
        }

        boolean isReported() {
            return decode || count != SHORT_PREFILL;
        }

        double flops() {
            return decode ? count * LeastWork.prefillFlops(config, 1) : LeastWork.prefillFlops(config, count);
        }

        /** The seconds of the last pass, as the estimate of the next one. */
        double last() {
            return seconds.isEmpty() ? first : seconds.getLast();
        }

        /** The first pass counts if there was no time for another. */
        List<Double> timed() {
            return seconds.isEmpty() ? List.of(first) : seconds;
        }

        /** @param must whether to measure once even if the share is too small */
        void run(Duration share, boolean must) {
            saved += ForwardBench.seconds(share);
            boolean once = must && budget.fits(last());
            while (once || saved > last()) {
                seconds.add(forward());
                saved -= last();
                once = false;
            }
        }

        /** Before and after each pass, products for as long as the last pass took. */
        void runBeside(Duration share, boolean must) {
            savedBeside += ForwardBench.seconds(share);
            boolean once = must && budget.fits(BESIDE_PASSES * last());
            if (!once && savedBeside <= BESIDE_PASSES * last()) {
                return;
            }
            long start = System.nanoTime();
            double before = probe.sustainedGemmFlops(lasting(last()));
            double spent;
            double pass;
            do {
                pass = forward();
                double after = probe.sustainedGemmFlops(lasting(pass));
                beside.add(new Beside(pass, (before + after) / 2));
                before = after;
                spent = (System.nanoTime() - start) * 1e-9;
            } while (spent + 2 * pass < savedBeside);
            savedBeside -= spent;
        }

        private double forward() {
            long start = System.nanoTime();
            runner.forward(slices, LayerHooks.NONE).close();
            return (System.nanoTime() - start) * 1e-9;
        }

        @Override
        public String toString() {
            return (decode ? "decode batch " : "prefill ") + count;
        }
    }
}
