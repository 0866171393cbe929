package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.kv.ConfigException;
import baton.router.upstream.Instance;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** The models of a router fitted to instances with computed times: no clock is read. */
class GoalModelTest {
    private static final int KIB = 1024;

    private final Random random = new Random(7);
    private final Instance prefill = instance(Instance.Role.PREFILL);
    private final Instance decode = instance(Instance.Role.DECODE);

    /** Milliseconds for each KiB at the decode instance, and of a gap for each KiB that it computes meanwhile. */
    private double localCost = 20;

    private double gapCost = 2;

    private static Instance instance(Instance.Role role) {
        Instance instance = new Instance(role, URI.create("http://" + role.label() + ":1"));
        instance.markUp();
        return instance;
    }

    private static GoalModel model(double ttft, double itl) {
        return new GoalModel(new LatencyGoals(goal(ttft), goal(itl)));
    }

    private static Optional<Duration> goal(double millis) {
        return millis == 0 ? Optional.empty() : Optional.of(Duration.ofNanos((long) (millis * 1e6)));
    }

    private static RoutingRequest request(int bytes) {
        return new RoutingRequest(new PromptPrefix(new long[0], bytes), Optional.empty());
    }

    private Forecast forecast(GoalModel model, int bytes, int decodeKnown) {
        return forecast(model, bytes, decodeKnown, 1);
    }

    private Forecast forecast(GoalModel model, int bytes, int decodeKnown, double share) {
        return model.forecast(
                new Choice(prefill, Choice.Why.LOAD, 0, 0),
                new Choice(decode, Choice.Why.PREFIX, decodeKnown, 0),
                request(bytes),
                share);
    }

    /** A hand-over costs 50 ms, and prefill 2 ms for each KiB and 5 ms for each request before it. */
    private double remoteMillis(int bytes) {
        return 50 + 2.0 * bytes / KIB + 5 * prefill.running();
    }

    private double localMillis(int bytes) {
        return 5 + localCost * bytes / KIB + 3 * decode.running();
    }

    private static long nanos(double millis) {
        return (long) (millis * 1e6);
    }

    /** Serves prompts of all sizes where the model says, with noise. */
    private void serve(GoalModel model, int requests) {
        serve(model, requests, false);
    }

    /** @param splits whether the decode instance computes three quarters of each second prompt that is handed over */
    private void serve(GoalModel model, int requests, boolean splits) {
        for (int i = 0; i < requests; i++) {
            List<Runnable> others = new ArrayList<>();
            for (int j = random.nextInt(4); j > 0; j--) {
                others.add(prefill.begin());
                others.add(decode.begin());
            }
            int bytes = KIB + random.nextInt(40 * KIB);
            double share = splits && i % 2 == 0 ? 0.25 : 1;
            Forecast forecast = forecast(model, bytes, 0, share);
            LatencyMeasurement measurement = model.measure(forecast, forecast.local(), decode);
            LatencyMeasurement beside = model.measure(forecast, false, decode);
            beside.gap(nanos(10 + gapCost * decode.localPrefillBytes() / KIB + random.nextDouble()));
            beside.ended();
            double millis = forecast.local()
                    ? localMillis(bytes)
                    : remoteMillis((int) (bytes * share)) + localCost * bytes * (1 - share) / KIB;
            measurement.firstToken(nanos(millis + random.nextDouble()));
            others.forEach(Runnable::run);
        }
        assertThat(decode.localPrefillBytes()).isZero();
    }

    @Test
    void leastSquaresFindTheWeightsAndFollowThem() {
        LeastSquares model = new LeastSquares(3);
        for (int i = 0; i < 3000; i++) {
            double[] features = {1, random.nextInt(100), random.nextInt(10)};
            double factor = i < 1500 ? 1 : 3;
            model.learn(features, factor * (10 + 2 * features[1] + 5 * features[2]) + random.nextGaussian());
            if (i == 1499) {
                assertThat(model.predict(new double[] {1, 50, 4})).isCloseTo(130, within(2.0));
            }
        }
        assertThat(model.predict(new double[] {1, 50, 4})).isCloseTo(390, within(4.0));
    }

    /** With features that never vary there is nothing to tell their weights by, however long that lasts. */
    @Test
    void leastSquaresStayFiniteWithoutVariety() {
        LeastSquares model = new LeastSquares(3);
        for (int i = 0; i < 1_000_000; i++) {
            model.learn(new double[] {1, 3, 0}, 42);
        }
        assertThat(model.predict(new double[] {1, 3, 0})).isCloseTo(42, within(0.1));
        model.learn(new double[] {1, 3, 2}, 52);
        assertThat(model.predict(new double[] {1, 3, 2})).isBetween(42.0, 62.0);
    }

    @Test
    void shortPromptsAreComputedWhereTheyAreDecodedAndLongOnesAreHandedOver() {
        GoalModel model = model(150, 0);
        serve(model, 600);
        // Both ways keep the goal: the sooner one.
        assertThat(forecast(model, KIB, 0)).satisfies(it -> {
            assertThat(it.local()).isTrue();
            assertThat(it.why()).isEqualTo(Forecast.Why.SOONER);
        });
        Forecast large = forecast(model, 30 * KIB, 0);
        assertThat(large.local()).isFalse();
        assertThat(large.why()).isEqualTo(Forecast.Why.KEEPS);
        assertThat(large.words())
                .contains(
                        "after 11",
                        "http://prefill:1 (30.0 KiB to compute, 0 requests there)",
                        "and 60",
                        "without (30.0")
                .contains("goals first token 150.0 ms: only with prefill they are kept");
        // The decode instance need not compute cached tokens.
        assertThat(forecast(model, 30 * KIB, 29 * KIB).local()).isTrue();
    }

    @Test
    void promptsBesideWhichStreamsWouldWaitTooLongAreHandedOver() {
        gapCost = 10;
        GoalModel model = model(0, 40);
        serve(model, 600);
        Runnable stream = decode.begin();
        assertThat(forecast(model, KIB, 0).local()).isTrue();
        Forecast larger = forecast(model, 6 * KIB, 0);
        assertThat(larger.local()).isFalse();
        assertThat(larger.words()).contains("goals between tokens 40.0 ms");
        // Nobody waits.
        stream.run();
        localCost = 1;
        assertThat(forecast(model, 2 * KIB, 0).local()).isTrue();
    }

    @Test
    void promptsInTwoPartsAreForetoldByBothParts() {
        GoalModel model = model(300, 40);
        serve(model, 600, true);
        Forecast whole = forecast(model, 20 * KIB, 0, 1);
        assertThat(whole.why()).isEqualTo(Forecast.Why.KEEPS);
        assertThat(whole.words()).contains("expected after 9", "(20.0 KiB to compute, 0 requests there)");
        // 50 + 5 * 2 + 15 * 20 ms.
        Forecast split = forecast(model, 20 * KIB, 0, 0.25);
        assertThat(split.why()).isEqualTo(Forecast.Why.MISSES_LESS);
        assertThat(split.local()).isFalse();
        assertThat(split.words())
                .contains("expected after 36", "(5.0 KiB to compute, 0 requests there, 15.0 KiB at decode)");
        LatencyMeasurement measurement = model.measure(split, false, decode);
        assertThat(decode.localPrefillBytes()).isEqualTo(15 * KIB);
        measurement.firstToken(nanos(360));
        assertThat(decode.localPrefillBytes()).isZero();
    }

    @Test
    void whereNoWayKeepsTheGoalsTheNearerOneIsTaken() {
        GoalModel model = model(20, 0);
        serve(model, 600);
        Forecast forecast = forecast(model, 20 * KIB, 0);
        assertThat(forecast.why()).isEqualTo(Forecast.Why.MISSES_LESS);
        assertThat(forecast.local()).isFalse();
    }

    @Test
    void aDecodeInstanceThatBecomesFasterIsFoundOut() {
        GoalModel model = model(150, 0);
        serve(model, 600);
        assertThat(forecast(model, 30 * KIB, 0).local()).isFalse();
        localCost = 0.5;
        serve(model, 4000);
        assertThat(forecast(model, 30 * KIB, 0).local()).isTrue();
    }

    @Test
    void atFirstBothWaysAreTriedAndThenOneInManyGoesTheOtherWay() {
        GoalModel model = model(150, 0);
        int local = 0;
        for (int i = 0; i < GoalModel.LEARNING * 4; i++) {
            Forecast forecast = forecast(model, 30 * KIB, 0);
            assertThat(forecast.why()).isEqualTo(Forecast.Why.LEARNING);
            local += forecast.local() ? 1 : 0;
        }
        assertThat(local).isEqualTo(4);
        serve(model, 600);
        int learning = 0;
        for (int i = 0; i < GoalModel.EXPLORING; i++) {
            Forecast forecast = forecast(model, 30 * KIB, 0);
            if (forecast.why() == Forecast.Why.LEARNING) {
                learning++;
                assertThat(forecast.local()).isTrue();
            }
        }
        assertThat(learning).isEqualTo(1);
    }

    @Test
    void aRequestThatEndsWithoutATokenLeavesNothingUnderWay() {
        GoalModel model = model(150, 0);
        LatencyMeasurement measurement = model.measure(forecast(model, 5 * KIB, 0), true, decode);
        assertThat(decode.localPrefillBytes()).isEqualTo(5 * KIB);
        measurement.ended();
        measurement.ended();
        assertThat(decode.localPrefillBytes()).isZero();
    }

    @Test
    void goalsOutOfRangeAreNamed() {
        assertThatThrownBy(() -> model(-1, 0))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("ttft goal");
        assertThatThrownBy(() -> model(0, 1e9)).hasMessageContaining("itl goal");
    }
}
