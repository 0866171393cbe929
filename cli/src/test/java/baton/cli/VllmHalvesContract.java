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
import java.util.stream.DoubleStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Hand-overs with a real vLLM 0.32 in a type of 16 bits, where blocks that Baton computed are rounded otherwise than vLLM's: answers differ from
 * those of vLLM alone only where its two best tokens are no further apart than where the type itself changes its answers, that is where they
 * differ from the golden ones in fp32, or from its own with other requests in the batch or a part of the prompt cached.
 */
@Tag("peers")
@Isolated("vLLM and its counterpart need the cores.")
@Timeout(1800)
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class VllmHalvesContract {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 100);
    private static final long SEED = Long.getLong("tests.seed", 14);
    private static final int MAX_TOKENS = 12;
    private static final int AT_ONCE = 8;

    @RegisterExtension
    final Instances instances = new Instances();

    private final String dtype;
    private final double resolution;

    @AutoClose
    private MixedFleet fleet;

    private final AtomicInteger salts = new AtomicInteger();

    /**
     * An answer.
     *
     * @param margins by how much each token's log probability is above the second best's; empty if they were not asked for
     */
    private record Answer(int[] tokens, double[] margins) {}

    /** @param margin largest one at which two answers to a prompt differ first; 0 if none differs */
    private record Difference(int answers, int of, double margin) {
        @Override
        public String toString() {
            return "%d of %d, margin at most %.3f".formatted(answers, of, margin);
        }
    }

    private interface Asking {
        Answer ask(int[] prompt) throws Exception;
    }

    /** @param resolution margin at which answers may differ where the type changes none of vLLM's own answers */
    VllmHalvesContract(String dtype, double resolution) {
        this.dtype = dtype;
        this.resolution = resolution;
    }

    @BeforeAll
    void start() throws Exception {
        fleet = MixedFleet.start(instances, Vllm.Setup.of(dtype));
    }

    @Test
    void answersDifferOnlyWhereTheTypeChangesThoseOfVllmAlone() throws Exception {
        List<int[]> prompts = MixedPrompts.single(PROMPTS, SEED);
        List<Answer> first = all(prompts, 1, this::alone);
        Difference together = difference(first, all(prompts, AT_ONCE, this::alone));
        Difference cached = difference(first, all(prompts, AT_ONCE, this::cached));
        Difference toVllm = difference(first, all(prompts, AT_ONCE, prompt -> through(fleet.toVllm(), prompt)));
        Difference fromVllm = difference(first, all(prompts, AT_ONCE, prompt -> through(fleet.fromVllm(), prompt)));
        Difference golden = difference(first.subList(0, golden().size()), golden());
        System.out.printf(
                "%s: vLLM alone against the golden answers in fp32: %s; one at a time, against %d at once: %s; against its prefix cache: %s; Baton to vLLM: %s; vLLM to Baton: %s%n",
                dtype, golden, AT_ONCE, together, cached, toVllm, fromVllm);
        double most = DoubleStream.of(golden.margin(), together.margin(), cached.margin(), resolution)
                .max()
                .orElseThrow();
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

    private static List<Answer> golden() {
        return MixedPrompts.golden()
                .valueStream()
                .map(each -> Instances.ints(each.path("output_ids")))
                .map(tokens -> new Answer(Arrays.copyOf(tokens, Math.min(MAX_TOKENS, tokens.length)), new double[0]))
                .toList();
    }

    private static Difference difference(List<Answer> first, List<Answer> second) {
        int answers = 0;
        double margin = 0;
        for (int i = 0; i < first.size(); i++) {
            int at = Arrays.mismatch(first.get(i).tokens, second.get(i).tokens);
            // An answer that ends earlier is no other answer.
            if (at >= 0 && at < Math.min(first.get(i).tokens.length, second.get(i).tokens.length)) {
                answers++;
                margin = Math.max(margin, first.get(i).margins[at]);
            }
        }
        return new Difference(answers, first.size(), margin);
    }

    /** The answer of an instance alone. With a salt of its own no token of a prompt is in a cache. */
    private Answer alone(int[] prompt) throws Exception {
        return answer(body(prompt));
    }

    /** All full blocks of the prompt but the last are in the cache. */
    private Answer cached(int[] prompt) throws Exception {
        ObjectNode body = body(prompt);
        answer(body);
        return answer(body);
    }

    private Answer answer(ObjectNode body) throws Exception {
        body.put("logprobs", 2).put("return_tokens_as_token_ids", true);
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
