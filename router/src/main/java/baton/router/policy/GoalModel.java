package baton.router.policy;

import baton.router.upstream.Instance;
import java.time.Duration;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Learns from the router's own measurements how long the first token takes when a prefill instance computes a prompt and when the decode instance does, and
 * how long streams of that decode instance wait for their next token meanwhile; and chooses the way that keeps the {@link LatencyGoals}. Linear models, of
 *
 * <ul>
 *   <li>the time to the first token over a prefill instance: KiB that it lacks of its part of the prompt, requests under way there, KiB of that part, which is
 *       handed over, KiB that the decode instance computes of the rest;
 *   <li>the same at the decode instance alone: KiB that it lacks, requests under way there;
 *   <li>the time between two tokens: requests under way at the decode instance, and KiB of prompts that it computes meanwhile.
 * </ul>
 *
 * Prompts are in bytes of their JSON text. Any thread.
 */
final class GoalModel {
    /** Samples of a way before it is judged. */
    static final int FEWEST = 8;

    /** Until then each so manieth of the first prompts is sent to the decode instance. */
    static final int LEARNING = 4;

    /** Later each so manieth prompt goes the other way, so that a model does not stay as it was when that way was last used. */
    static final int EXPLORING = 64;

    private static final double KIB = 1024;
    private static final double MILLI = 1e-6;

    private final LatencyGoals goals;
    private final LeastSquares remote = new LeastSquares(5);
    private final LeastSquares local = new LeastSquares(3);
    private final LeastSquares gaps = new LeastSquares(3);
    private final AtomicInteger turn = new AtomicInteger();

    GoalModel(LatencyGoals goals) {
        this.goals = goals;
    }

    /**
     * @param prefill the instances that would serve the request
     * @param share of the prompt that the prefill instance would compute
     */
    Forecast forecast(Choice prefill, Choice decode, RoutingRequest request, double share) {
        int bytes = request.prefix().promptBytes();
        int part = (int) (bytes * share);
        int lacks = Math.max(0, part - prefill.known());
        int decodeLacks = Math.max(0, bytes - decode.known());
        int rest = Math.min(bytes - part, decodeLacks);
        int prefillRuns = prefill.instance().running();
        int decodeRuns = decode.instance().running();
        double[] remotely = {1, lacks / KIB, prefillRuns, part / KIB, rest / KIB};
        double[] locally = {1, decodeLacks / KIB, decodeRuns};
        int number = turn.getAndIncrement() & Integer.MAX_VALUE;
        if (remote.samples() < FEWEST || local.samples() < FEWEST) {
            // Of requests that are not streamed nothing is learnt, however many there are.
            int each = number < EXPLORING ? LEARNING : EXPLORING;
            boolean here = local.samples() < FEWEST && number % each == each - 1;
            return new Forecast(
                    here,
                    Forecast.Why.LEARNING,
                    remotely,
                    locally,
                    decodeLacks,
                    rest,
                    "%d prompts of prefill instances and %d of decode instances are measured so far, too few to foretell"
                            .formatted(remote.samples(), local.samples()));
        }
        double ttftRemote = Math.max(0, remote.predict(remotely));
        double ttftLocal = Math.max(0, local.predict(locally));
        double gap = gap(decode.instance(), decodeLacks);
        double missRemote = Math.max(
                ratio(ttftRemote, goals.ttft()), rest == 0 ? 0 : ratio(gap(decode.instance(), rest), goals.itl()));
        double missLocal = Math.max(ratio(ttftLocal, goals.ttft()), ratio(gap, goals.itl()));
        boolean here;
        Forecast.Why why;
        if (missRemote <= 1 && missLocal <= 1) {
            here = ttftLocal < ttftRemote;
            why = Forecast.Why.SOONER;
        } else {
            here = missLocal < missRemote;
            why = Math.min(missRemote, missLocal) <= 1 ? Forecast.Why.KEEPS : Forecast.Why.MISSES_LESS;
        }
        if (number % EXPLORING == EXPLORING - 1) {
            here = !here;
            why = Forecast.Why.LEARNING;
        }
        return new Forecast(
                here,
                why,
                remotely,
                locally,
                decodeLacks,
                rest,
                String.format(
                        Locale.ROOT,
                        "the first token is expected after %.1f ms with prefill at %s (%.1f KiB to compute, %d requests there%s) and %.1f ms without (%.1f"
                                + " KiB, %d requests), with %.1f ms between tokens of its streams meanwhile; goals%s%s: %s",
                        ttftRemote,
                        prefill.instance().url(),
                        lacks / KIB,
                        prefillRuns,
                        rest == 0 ? "" : String.format(Locale.ROOT, ", %.1f KiB at decode", rest / KIB),
                        ttftLocal,
                        decodeLacks / KIB,
                        decodeRuns,
                        gap,
                        words(" first token", goals.ttft()),
                        words(" between tokens", goals.itl()),
                        switch (why) {
                            case KEEPS ->
                                here ? "only without prefill they are kept" : "only with prefill they are kept";
                            case SOONER -> here ? "sooner without prefill" : "sooner with prefill";
                            case MISSES_LESS -> here ? "missed by less without prefill" : "missed by less with prefill";
                            case LEARNING -> "against that, to measure whether it is still so";
                        }));
    }

    /** Milliseconds between two tokens at an instance that computes so much of one more prompt. */
    private double gap(Instance decode, int bytes) {
        // Where no stream runs there is none that waits.
        double computing = decode.running() == 0 ? 0 : (bytes + decode.localPrefillBytes()) / KIB;
        return gaps.samples() < FEWEST
                ? 0
                : Math.max(0, gaps.predict(new double[] {1, decode.running() + 1.0, computing}));
    }

    private static double ratio(double millis, Optional<Duration> goal) {
        return goal.map(most -> millis / (most.toNanos() * MILLI)).orElse(0.0);
    }

    private static String words(String what, Optional<Duration> goal) {
        return goal.map(most -> String.format(Locale.ROOT, "%s %.1f ms", what, most.toNanos() * MILLI))
                .orElse("");
    }

    /** Begins to measure a request. */
    LatencyMeasurement measure(Forecast forecast, boolean isLocal, Instance decode) {
        return new Measured(forecast, isLocal, decode);
    }

    private final class Measured implements LatencyMeasurement {
        private final Forecast forecast;
        private final boolean isLocal;
        private final Instance decode;
        private final LocalPrefillBytes computing;
        private double beside;

        private Measured(Forecast forecast, boolean isLocal, Instance decode) {
            this.forecast = forecast;
            this.isLocal = isLocal;
            this.decode = decode;
            this.computing = new LocalPrefillBytes(decode, isLocal ? forecast.localBytes() : forecast.restBytes());
        }

        @Override
        public void firstToken(long nanos) {
            ended();
            if (isLocal) {
                local.learn(forecast.localFeatures(), nanos * MILLI);
            } else {
                remote.learn(forecast.remoteFeatures(), nanos * MILLI);
            }
            beside = decode.localPrefillBytes();
        }

        @Override
        public void gap(long nanos) {
            // Of a prompt that began or ended within the gap.
            double now = decode.localPrefillBytes();
            gaps.learn(new double[] {1, decode.running(), Math.max(beside, now) / KIB}, nanos * MILLI);
            beside = now;
        }

        @Override
        public void ended() {
            computing.ended();
        }
    }
}
