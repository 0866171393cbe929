package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Hand-overs with a real vLLM 0.32 in bf16, whose greedy tokens depend on what else is in a batch: they differ from those of vLLM alone
 * only where its two best tokens are no further apart than where vLLM differs from itself.
 */
@Tag("peers")
@Isolated("vLLM and what it is measured against need the cores.")
@Timeout(1800)
class VllmBf16Test {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 100);
    private static final long SEED = Long.getLong("tests.seed", 14);
    private static final int MAX_TOKENS = 12;
    private static final int[] AT_ONCE = {2, 4, 8, 12, 16};

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @SuppressWarnings("NullAway.Init")
    private static MixedFleet fleet;

    private final AtomicInteger salts = new AtomicInteger();

    /**
     * An answer.
     *
     * @param margins by how much each token's log probability is above the second best's; empty if they were not asked for
     */
    private record Answer(int[] tokens, double[] margins) {}

    /** @param margin largest one at which two answers to a prompt differ first; 0 if none differs */
    private record Difference(int answers, double margin) {
        @Override
        public String toString() {
            return "%d of %d, margin at most %.3f".formatted(answers, PROMPTS, margin);
        }
    }

    private interface Asking {
        Answer ask(int[] prompt) throws Exception;
    }

    @BeforeAll
    static void start() throws Exception {
        fleet = MixedFleet.start(INSTANCES, Vllm.Setup.of("bfloat16"));
    }

    @AfterAll
    static void stop() throws Exception {
        if (fleet != null) {
            fleet.close();
        }
    }

    @Test
    void answersDifferOnlyWhereThoseOfVllmAloneDo() throws Exception {
        List<int[]> prompts = MixedPrompts.single(PROMPTS, SEED);
        List<Answer> first = all(prompts, 1, this::alone);
        List<Difference> own = new ArrayList<>();
        for (int atOnce : AT_ONCE) {
            own.add(difference(first, all(prompts, atOnce, this::alone)));
        }
        Difference toVllm = difference(first, all(prompts, 8, prompt -> through(fleet.toVllm(), prompt)));
        Difference fromVllm = difference(first, all(prompts, 8, prompt -> through(fleet.fromVllm(), prompt)));
        System.out.printf(
                "VllmBf16Test: vLLM alone, one at a time, against %s at once: %s; Baton to vLLM, 8 at once: %s; vLLM to Baton: %s%n",
                Arrays.toString(AT_ONCE), own, toVllm, fromVllm);
        double most = own.stream().mapToDouble(Difference::margin).max().orElseThrow();
        assertThat(toVllm.margin()).as("Baton to vLLM: %s", toVllm).isLessThanOrEqualTo(most);
        assertThat(fromVllm.margin()).as("vLLM to Baton: %s", fromVllm).isLessThanOrEqualTo(most);
        fleet.vllm().awaitRest();
        assertThat(fleet.vllm().metric("vllm:nixl_num_failed_transfers_total")).isZero();
        assertThat(fleet.decode().prompts().transferred()).isPositive();
    }

    private static List<Answer> all(List<int[]> prompts, int atOnce, Asking asking) throws Exception {
        try (ExecutorService clients = Executors.newFixedThreadPool(atOnce)) {
            List<Future<Answer>> asked = prompts.stream()
                    .map(prompt -> clients.submit(() -> asking.ask(prompt)))
                    .toList();
            List<Answer> answers = new ArrayList<>();
            for (Future<Answer> each : asked) {
                answers.add(each.get());
            }
            return answers;
        }
    }

    private static Difference difference(List<Answer> first, List<Answer> second) {
        int answers = 0;
        double margin = 0;
        for (int i = 0; i < first.size(); i++) {
            int at = Arrays.mismatch(first.get(i).tokens, second.get(i).tokens);
            if (at >= 0) {
                answers++;
                margin = Math.max(margin, first.get(i).margins[at]);
            }
        }
        return new Difference(answers, margin);
    }

    /** With a salt of its own nothing of a prompt is in a cache. */
    private Answer alone(int[] prompt) throws Exception {
        ObjectNode body = body(prompt).put("logprobs", 2).put("return_tokens_as_token_ids", true);
        JsonNode choice = fleet.vllm().post("/v1/completions", body.toString()).choice();
        double[] margins = choice.path("logprobs")
                .path("top_logprobs")
                .valueStream()
                .mapToDouble(top -> {
                    double[] two = top.valueStream()
                            .mapToDouble(JsonNode::asDouble)
                            .sorted()
                            .toArray();
                    return two[two.length - 1] - two[two.length - 2];
                })
                .toArray();
        return new Answer(Instances.ints(choice.path("token_ids")), margins);
    }

    private Answer through(Instance router, int[] prompt) throws Exception {
        return new Answer(
                router.post("/v1/completions", body(prompt).toString()).tokenIds(), new double[0]);
    }

    private ObjectNode body(int[] prompt) {
        return MixedFleet.body(prompt, MAX_TOKENS).put("cache_salt", "s" + salts.incrementAndGet());
    }
}
