package baton.engine.core;

import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.BlockHasher;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.WarmUpPair;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Hands prompts over from one engine core to another by a connector, both with a {@link StandInRunner} for a model. So the code and
 * libraries of a first hand-over are loaded and compiled, while nothing of the instance itself is touched.
 */
public final class HandoverWarmUp implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(HandoverWarmUp.class);

    /** The limit of a prompt's keys and values. */
    private static final long MOST_BYTES = 4L << 20;

    private static final int MOST_TOKENS = 512;
    /** A hand-over that takes more than this share of the fastest is no faster; after so many of these there is no point in more. */
    private static final double FASTER = 0.9;

    private static final int ENOUGH = 3;

    /** Hand-overs at most. */
    private static final int MOST = 6;

    private static final long PAUSE_NANOS = 100_000;

    /** The longest that a hand-over which has begun is waited for: one that is cut off warms up nothing, and its connector warns of it. */
    private static final Duration LONGEST = Duration.ofSeconds(10);

    private final WarmUpPair pair;
    private final KvLayout layout;
    private final int tokens;
    private final Side producer;
    private final Side consumer;
    private final Ticker ticker;
    private final Random random = new Random(1);
    private int count;

    /**
     * Hands prompts over, one after the other, until there is no time left, it gets no faster, or there were {@value #MOST}. If there is any time, one is handed over,
     * however long it takes. A failure is logged: the instance can do without.
     *
     * @param config of the instance
     * @param fingerprint of the instance's model
     * @param layout of its pool
     * @return how many were handed over
     */
    public static int run(
            KvTransferConfig config, ModelFingerprint fingerprint, KvLayout layout, Duration atMost, Ticker ticker) {
        Deadline deadline = Deadline.after(ticker, atMost);
        int done = 0;
        try {
            Optional<KvConnector> connector = KvConnectors.find(config);
            Optional<WarmUpPair> possible = connector.isPresent() && atMost.isPositive()
                    ? connector.get().warmUpPair(config)
                    : Optional.empty();
            if (possible.isEmpty()) {
                return 0;
            }
            try (WarmUpPair pair = possible.get();
                    HandoverWarmUp handovers = new HandoverWarmUp(pair, config, fingerprint, layout, ticker)) {
                long fastest = Long.MAX_VALUE;
                long last = 0;
                // After the first, none is begun that will not end in time.
                for (int noFaster = 0;
                        noFaster < ENOUGH && done < MOST && (done == 0 || deadline.remainingNanos() > last); ) {
                    Optional<Duration> took = handovers.handOver(LONGEST);
                    if (took.isEmpty()) {
                        break;
                    }
                    done++;
                    last = took.get().toNanos();
                    noFaster = last > fastest * FASTER ? noFaster + 1 : 0;
                    fastest = Math.min(fastest, last);
                    LOG.debug("hand-over {} took {} us", done, last / 1000);
                }
            }
        } catch (IOException | RuntimeException e) {
            LOG.warn("Hand-overs did not warm up to the end: {}", e.toString());
        }
        return done;
    }

    /**
     * @param config of the instance
     * @param fingerprint of the instance's model
     * @param layout of its pool
     */
    private HandoverWarmUp(
            WarmUpPair pair, KvTransferConfig config, ModelFingerprint fingerprint, KvLayout layout, Ticker ticker) {
        this.pair = pair;
        this.ticker = ticker;
        this.layout = layout;
        // Not whole blocks: the last is another case.
        this.tokens = Math.clamp(MOST_BYTES / layout.tokenBytes(), layout.blockSize(), MOST_TOKENS) + 1;
        this.producer = new Side(authenticating(pair.producer(), config), fingerprint);
        try {
            this.consumer = new Side(authenticating(pair.consumer(), config), fingerprint);
        } catch (RuntimeException | Error e) {
            producer.core.close();
            throw e;
        }
    }

    /** The configuration of a side; with the instance's secret, as the first proof loads the JDK's whole cryptography. */
    private static KvTransferConfig authenticating(KvTransferConfig side, KvTransferConfig instance) {
        KvTransferConfig with = side;
        for (String key : List.of(KvTransferConfig.AUTH_SECRET_FILE, KvTransferConfig.ENCRYPTION)) {
            Optional<String> value = instance.extra().string(key);
            if (value.isPresent()) {
                with = with.withExtra(key, value.get());
            }
        }
        return with;
    }

    /**
     * Hands one prompt over.
     *
     * @param timeout after which it is given up
     * @return how many nanoseconds it took; empty if it did not come to its end, or came to another
     */
    private Optional<Duration> handOver(Duration timeout) {
        long start = ticker.nanos();
        Deadline deadline = Deadline.after(ticker, timeout);
        int number = count++;
        String id = "cmpl-" + pair.requestId().apply(number) + "-0-";
        // Every other one with both legs at once, if the connector can.
        Optional<JsonFields> ahead = number % 2 == 0 ? producer.core.advertisedKvTransferParams() : Optional.empty();
        int[] prompt = random.ints(tokens, 1, StandInRunner.VOCABULARY).toArray();
        Leg prefill = new Leg();
        Leg decode = new Leg();
        if (ahead.isPresent()) {
            consumer.add(id + "00000002", prompt, ahead.map(params -> pair.decodeParams(number, params)), decode);
        }
        producer.add(id + "00000001", prompt, Optional.of(pair.prefillParams(number)), prefill);
        boolean sent = ahead.isPresent();
        while (!decode.ended || !prefill.ended || producer.isBusy() || consumer.isBusy()) {
            if (deadline.isOver()) {
                return Optional.empty();
            }
            boolean given = producer.step();
            boolean taken = consumer.step();
            if (prefill.ended && !sent) {
                sent = true;
                consumer.add(id + "00000002", prompt, prefill.params, decode);
            } else if (!given && !taken) {
                LockSupport.parkNanos(PAUSE_NANOS);
            }
        }
        return decode.loaded > 0 ? Optional.of(Duration.ofNanos(ticker.nanos() - start)) : Optional.empty();
    }

    @Override
    public void close() {
        try {
            producer.close();
        } finally {
            consumer.close();
        }
    }

    /** One of the two instances. */
    private final class Side implements AutoCloseable {
        private final EngineCore core;
        private final BlockHasher hasher;

        Side(KvTransferConfig transfer, ModelFingerprint fingerprint) {
            EngineConfig config = EngineConfig.of(Path.of("warm-up"))
                    .blockSize(layout.blockSize())
                    .kvTransfer(transfer)
                    .build();
            int blocks = 2 * layout.blocksFor(tokens + 1);
            hasher = new BlockHasher(layout.blockSize());
            core = new EngineCore(
                    config,
                    new StandInRunner(fingerprint, layout, blocks),
                    Set.of(),
                    Optional.of(pair.connector()),
                    EngineListener.NONE,
                    ticker);
        }

        void add(String id, int[] prompt, Optional<JsonFields> params, Leg leg) {
            core.add(new Request(
                    id,
                    prompt,
                    prompt.length + 1,
                    SamplingParams.greedy(1),
                    hasher,
                    leg,
                    SequenceOptions.builder()
                            .kvTransferParams(params)
                            .arrivalNanos(ticker.nanos())
                            .build()));
        }

        /** Blocks are still in use. */
        boolean isBusy() {
            return core.status(Optional.empty()).usedBlocks() > 0;
        }

        boolean step() {
            return core.hasWork() && core.step();
        }

        @Override
        public void close() {
            core.endAll(FinishReason.ABORT, "");
            core.close();
        }
    }

    /** The outcome of a request. */
    private static final class Leg implements RequestListener {
        private boolean ended;
        private int loaded;
        private Optional<JsonFields> params = Optional.empty();

        @Override
        public Optional<String> onToken(Sampled token, boolean ends) {
            return Optional.empty();
        }

        @Override
        public void onFinished(
                FinishReason reason,
                Optional<Object> stopReason,
                RequestStats stats,
                Optional<JsonFields> kvTransferParams,
                Optional<String> error) {
            ended = true;
            loaded = stats.prompt().externalKvTransfer();
            params = kvTransferParams;
        }
    }
}
