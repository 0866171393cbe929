package baton.bench.plan;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.bench.plan.FleetSimulation.Outcome;
import baton.bench.plan.Planner.Plan;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class PlannerTest {
    private static final Goals ANY = new Goals(1e9, 1e9, 0.9);

    /** A millisecond for each token of a prompt; 20 ms for a step, whatever is in it. */
    private static final MachineProfile MACHINE = new MachineProfile(
            "test",
            1,
            new Curve(List.of(new Curve.Point(0, 0), new Curve.Point(1000, 1))),
            Curve.constant(0.02),
            0,
            1,
            Map.of("connector", Curve.constant(0.01)),
            64);

    @TempDir
    Path directory;

    private static double mean(double[] values) {
        return Arrays.stream(values).average().orElseThrow();
    }

    /** Pollaczek and Khinchine: with constant service s and load r the mean wait is r s / (2 (1 - r)). */
    @ParameterizedTest
    @CsvSource({"0.3", "0.6", "0.8"})
    void promptsOnOnePrefillInstanceWaitAsInAQueueWithConstantService(double load) {
        double service = 0.5;
        Fleet fleet = new Fleet.Disaggregated(MACHINE, 1, MACHINE, 8, "connector");
        Outcome outcome = FleetSimulation.run(fleet, Workload.of(500, 1), load / service, 40_000, ANY, 1);
        double wait = load * service / (2 * (1 - load));
        // Then the hand-off and a step.
        assertThat(mean(outcome.ttft())).isCloseTo(service + wait + 0.03, within(0.06 * (service + wait)));
    }

    @Test
    void anIdleFleetHasTheTimesOfTheProfile() {
        Outcome apart = FleetSimulation.run(
                new Fleet.Disaggregated(MACHINE, 1, MACHINE, 1, "connector"), Workload.of(100, 10), 0.001, 20, ANY, 1);
        assertAll(apart.ttft(), 18, 0.1 + 0.01 + 0.02);
        assertAll(apart.itl(), 18 * 9, 0.02);
        Outcome together =
                FleetSimulation.run(new Fleet.Colocated(MACHINE, 1, 512), Workload.of(100, 10), 0.001, 20, ANY, 1);
        assertAll(together.ttft(), 18, 0.1);
    }

    private static void assertAll(double[] values, int count, double value) {
        assertThat(values).hasSize(count);
        assertThat(Arrays.stream(values).boxed())
                .allSatisfy(each -> assertThat(each).isCloseTo(value, within(1e-9)));
    }

    @Test
    void aSmallerBudgetShortensIntervalsAndLengthensTheTimeToTheFirstToken() {
        Workload load = Workload.of(1000, 100);
        Outcome large = FleetSimulation.run(new Fleet.Colocated(MACHINE, 1, 8192), load, 0.3, 2000, ANY, 1);
        Outcome small = FleetSimulation.run(new Fleet.Colocated(MACHINE, 1, 128), load, 0.3, 2000, ANY, 1);
        Outcome apart = FleetSimulation.run(
                new Fleet.Disaggregated(MACHINE, 1, MACHINE, 1, "connector"), load, 0.3, 2000, ANY, 1);
        assertThat(Outcome.percentile(large.itl(), 0.999)).isGreaterThan(1);
        assertThat(Outcome.percentile(small.itl(), 0.999)).isBetween(0.1, 0.15);
        assertThat(Outcome.percentile(apart.itl(), 1)).isCloseTo(0.02, within(1e-9));
        assertThat(mean(small.ttft())).isGreaterThan(mean(large.ttft()));
    }

    @Test
    void aHundredInstancesServeAlmostAHundredTimesTheRateOfOne() {
        Planner planner = new Planner(new Goals(2, 10, 0.9), 1000, 1);
        Workload load = Workload.of(500, 20);
        Plan one = planner.goodput(new Fleet.Colocated(MACHINE, 1, 2048), load);
        Plan hundred =
                new Planner(new Goals(2, 10, 0.9), 8000, 1).goodput(new Fleet.Colocated(MACHINE, 100, 2048), load);
        // At most: one instance computes 500 tokens in 0.5 s. Many queue less than one.
        assertThat(one.goodput()).isBetween(0.8, 2.0);
        assertThat(hundred.goodput()).isBetween(100 * one.goodput(), 200.0);
    }

    @Test
    void theDivisionFollowsTheLoad() {
        Planner planner = new Planner(new Goals(5, 0.05, 0.9), 100, 1);
        Plan prompts = planner.bestDisaggregated(MACHINE, MACHINE, 8, Workload.of(2000, 10), "connector")
                .orElseThrow();
        Plan answers = planner.bestDisaggregated(MACHINE, MACHINE, 8, Workload.of(50, 2000), "connector")
                .orElseThrow();
        assertThat(((Fleet.Disaggregated) prompts.fleet()).prefills()).isEqualTo(7);
        assertThat(((Fleet.Disaggregated) answers.fleet()).prefills()).isLessThan(4);
        assertThat(planner.bestDisaggregated(MACHINE, MACHINE, 1, Workload.of(1, 1), "connector"))
                .isEmpty();
    }

    /** Noise makes flat pieces of a measured curve: parts of a prompt that cost nothing. */
    @Test
    void promptsWithPartsThatCostNothingAreComputedToTheEnd() {
        MachineProfile flat = new MachineProfile(
                "flat", 1, Curve.constant(0.03), Curve.constant(0.02), 0, 1, Map.of("connector", Curve.constant(0)), 8);
        Outcome outcome = FleetSimulation.run(new Fleet.Colocated(flat, 1, 64), Workload.of(200, 2), 0.1, 20, ANY, 1);
        assertThat(outcome.ttft()).hasSize(18);
        assertThat(outcome.wellServed()).isEqualTo(1);
    }

    @Test
    void noFleetServesMoreThanItsInstancesCanCompute() {
        Plan plan = new Planner(new Goals(2, 10, 0.9), 20, 1)
                .goodput(new Fleet.Disaggregated(MACHINE, 40, MACHINE, 40, "connector"), Workload.of(500, 1));
        // Half a second for each prompt; the queue at the end is shorter than the goal allows.
        assertThat(plan.goodput()).isBetween(70.0, 90.0);
    }

    @Test
    void goalsForIntervalsDecideWhetherItPaysToDisaggregate() {
        Workload load = Workload.of(1000, 100);
        PlanReport strict =
                PlanReport.of(new Planner(new Goals(3, 0.03, 0.9), 40, 1), MACHINE, MACHINE, 2, load, Optional.of(1.0));
        assertThat(strict.advice()).startsWith("Disaggregate (1P1D, connector)");
        assertThat(strict.smallest().orElseThrow().fleets())
                .isNotEmpty()
                .allSatisfy(plan -> assertThat(plan.goodput()).isGreaterThanOrEqualTo(1));
        PlanReport loose =
                PlanReport.of(new Planner(new Goals(3, 10, 0.9), 40, 1), MACHINE, MACHINE, 2, load, Optional.empty());
        assertThat(loose.advice()).startsWith("Do not disaggregate: 2 colocated");
        PlanReport impossible = PlanReport.of(
                new Planner(new Goals(0.001, 0.03, 0.9), 40, 1), MACHINE, MACHINE, 2, load, Optional.empty());
        assertThat(impossible.advice()).startsWith("Neither meets the goals");
    }

    @Test
    void aProfileIsReadAsItWasWritten() throws IOException {
        Path file = directory.resolve("profile.json");
        Files.writeString(file, MACHINE.toJson().toString());
        assertThat(MachineProfile.read(file)).isEqualTo(MACHINE);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{ | is no JSON",
                "{} | units is ",
                "{\"units\": 0} | units is 0, must be a whole number of at least 1",
                "{\"units\": 1, \"prefill_seconds\": [{\"tokens\": 1}]} | prefill_seconds has {\"tokens\":1}",
                "{\"units\": 1, \"prefill_seconds\": []} | prefill_seconds is missing",
            })
    void aMalformedProfileIsRefusedByItsField(String json, String message) throws IOException {
        Path file = directory.resolve("profile.json");
        Files.writeString(file, json);
        assertThatThrownBy(() -> MachineProfile.read(file))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(message);
    }

    @Test
    void aCurveIsStraightBetweenItsPointsAndBeyondAndNeverFalls() {
        Curve curve = new Curve(List.of(new Curve.Point(100, 2), new Curve.Point(10, 1), new Curve.Point(200, 1.5)));
        assertThat(curve.at(55)).isCloseTo(1.5, within(1e-9));
        assertThat(curve.at(150)).isEqualTo(2);
        assertThat(curve.at(1000)).isEqualTo(2);
        assertThat(new Curve(List.of(new Curve.Point(10, 1), new Curve.Point(20, 3))).at(0))
                .isZero();
        assertThat(Curve.constant(3).at(7)).isEqualTo(3);
    }
}
