package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.ProxiedFleet.Answer;
import baton.cli.ProxiedFleet.Path;
import baton.cli.ProxiedFleet.Way;
import baton.testkit.Await;
import baton.testkit.Damages.Damage;
import baton.testkit.Damages.Kind;
import baton.testkit.DamagingProxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Instances in processes of their own, and a network between them, or between them and their store, that flips bits, cuts, drops, swaps
 * and repeats bytes: tokens and log probabilities are those of one instance alone, in the request with the damaged transfer and in later
 * ones that find its blocks in a cache. {@code -Dtests.damaged=N} is for N damages of each way, {@code -Dtests.seed=N} for others.
 */
@Tag("thorough")
class DamagedTransfersTest {
    private static final int DAMAGED = Integer.getInteger("tests.damaged", 3);
    private static final long SEED = Long.getLong("tests.seed", 3);
    private static final long TOKEN_BYTES = 6144;
    /** The bytes of a prompt's keys and values, and some more. */
    private static final long MOST_BYTES = ProxiedFleet.LONGEST * TOKEN_BYTES + 8192;
    /** The bytes of heads and control messages. */
    private static final long HEAD_BYTES = 1500;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Instance alone;

    @BeforeAll
    static void start() throws Exception {
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
    }

    @ParameterizedTest
    @EnumSource
    void noDamagedByteIsUsed(Way way) throws Exception {
        try (ProxiedFleet fleet = new ProxiedFleet(way, INSTANCES)) {
            Random random = new Random(SEED);
            fleet.handOver(ProxiedFleet.prompt(random));
            int trial = 0;
            // The first one hits keys and values for certain, where their lane is known.
            Optional<Damage> first = fleet.dataLane().map(lane -> new Damage(Kind.FLIP, lane, 16 * TOKEN_BYTES, 1));
            while (fleet.damages.count() < DAMAGED) {
                Damage damage = trial == 0 && first.isPresent() ? first.get() : randomDamage(way, fleet, random);
                try {
                    assertThat(trial++).as("trials").isLessThan(20 * DAMAGED);
                    trial(way, fleet, damage, ProxiedFleet.prompt(random));
                } catch (AssertionError | Exception e) {
                    throw new AssertionError(
                            "trial %d, %s, of %s with -Dtests.seed=%d".formatted(trial, damage, way, SEED), e);
                }
            }
            double before = fleet.decode.prompts().transferred();
            Await.until(Instances.DEADLINE, () -> "nothing is handed over after the damages", () -> {
                fleet.handOver(ProxiedFleet.prompt(random));
                return fleet.decode.prompts().transferred() > before;
            });
            assertThatDamagesWereFound(way, fleet);
            System.out.printf(
                    "DamagedTransfersTest: %s: %d damages %s in %d hand-overs, %d tokens transferred, %d computed (-Dtests.seed=%d)%n",
                    way,
                    fleet.damages.count(),
                    fleet.damages.byKind(),
                    trial,
                    fleet.decode.prompts().transferred(),
                    fleet.decode.prompts().computed(),
                    SEED);
        }
    }

    private static Damage randomDamage(Way way, ProxiedFleet fleet, Random random) {
        List<String> lanes = new ArrayList<>(way.lanes());
        if (fleet.dataLane().isEmpty()) {
            return Damage.random(random, lanes, MOST_BYTES);
        }
        if (way != Way.PYNCCL) {
            lanes.addAll(DamagingProxy.lanes(ProxiedFleet.DATA));
        }
        String data = fleet.dataLane().get();
        String lane = random.nextBoolean() ? data : lanes.get(random.nextInt(lanes.size()));
        return Damage.random(random, List.of(lane), lane.equals(data) ? MOST_BYTES : HEAD_BYTES);
    }

    private static void trial(Way way, ProxiedFleet fleet, Damage damage, int[] prompt) throws Exception {
        fleet.damages.arm(damage);
        Answer answer = fleet.handOver(prompt);
        boolean _ = fleet.damages.disarm();
        Answer expected = ProxiedFleet.answer(alone, prompt);
        assertThat(answer).as("the request with the damaged transfer").isEqualTo(expected);
        if (way.path == Path.PIPE) {
            assertThat(fleet.handOver(prompt)).as("the same hand-over again").isEqualTo(expected);
        } else {
            assertThat(fleet.again(prompt))
                    .as("the next request, by the prefix cache")
                    .isEqualTo(expected);
        }
        if (way.path == Path.STORE) {
            Await.until(
                    Instances.DEADLINE,
                    () -> "the prefix cache cannot be reset",
                    () -> fleet.decode.post("/reset_prefix_cache", "").status() == 200);
            assertThat(fleet.again(prompt))
                    .as("the next request, from the store")
                    .isEqualTo(expected);
        }
    }

    private static void assertThatDamagesWereFound(Way way, ProxiedFleet fleet) throws Exception {
        if (way.path != Path.PIPE) {
            return;
        }
        assertThat(fleet.prefill.prompts().cached()).isPositive();
        assertThat(fleet.decode.prompts().cached()).isPositive();
        String failures = way == Way.PYNCCL ? "baton:kv_lookup_failures_total" : "baton:kv_load_failures_total";
        assertThat(fleet.decode.metric(failures, "\"corrupt\"")).isPositive();
        if (way != Way.PYNCCL) {
            assertThat(fleet.decode.metric("baton:p2p_corrupt_total", "")).isPositive();
            assertThat(fleet.decode.metric("baton:p2p_unchecked_tensors_total", ""))
                    .isZero();
        }
    }
}
