package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** In fp32, one instance alone and two that hand over give the same tokens, and the decode instance's metrics prove the hand-over. */
class HandoverTest {
    private static final int MAX_MODEL_LEN = 2048;
    private static final int MAX_TOKENS = 12;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Deployment> DEPLOYMENTS = new ArrayList<>();

    /** One instance's answers by prompt. */
    private static final Map<String, int[]> ALONE = new HashMap<>();

    private static Instance alone;

    record Deployment(String name, int blockSize, Instance prefill, Instance decode, Instance router) {
        @Override
        public String toString() {
            return name;
        }
    }

    @BeforeAll
    static void start() throws Exception {
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        Pair whole = pair("whole", 16, List.of(), List.of());
        // Not a multiple of the block: chunks end inside blocks.
        List<String> chunks = List.of("--max-num-batched-tokens", "136", "--max-num-seqs", "16", "-tp", "2");
        Pair ranks = pair("chunks and ranks", 32, chunks, with(chunks, "-pp", "2"));
        DEPLOYMENTS.addAll(List.of(whole.routed(), ranks.routed()));
    }

    private record Pair(String name, int blockSize, Instance prefill, Instance decode) {
        Deployment routed() throws Exception {
            Instance router = INSTANCES.route(name + "-router", List.of(prefill), List.of(decode));
            return new Deployment(name, blockSize, prefill, decode, router);
        }
    }

    private static Pair pair(String name, int blockSize, List<String> prefill, List<String> decode) throws Exception {
        Path shared = INSTANCES.directory(name);
        return new Pair(
                name,
                blockSize,
                INSTANCES.serve(name + "-prefill", "kv_producer", shared, options(blockSize, prefill)),
                INSTANCES.serve(name + "-decode", "kv_consumer", shared, options(blockSize, decode)));
    }

    private static String[] options(int blockSize, List<String> more) {
        return with(more, "--dtype", "float32", "--block-size", Integer.toString(blockSize))
                .toArray(String[]::new);
    }

    private static List<String> with(List<String> options, String... more) {
        return Stream.concat(options.stream(), Stream.of(more)).toList();
    }

    static Stream<Arguments> lengths() {
        return DEPLOYMENTS.stream().flatMap(deployment -> {
            int block = deployment.blockSize;
            return IntStream.of(
                            1, block - 1, block, block + 1, 2 * block, 2 * block + 1, 1009, MAX_MODEL_LEN - MAX_TOKENS)
                    .mapToObj(length -> Arguments.of(deployment, length));
        });
    }

    static Stream<Arguments> deployments() {
        return DEPLOYMENTS.stream().map(Arguments::of);
    }

    private static int[] alone(int[] prompt) throws Exception {
        String key = Arrays.toString(prompt);
        int[] known = ALONE.get(key);
        if (known == null) {
            known = alone.complete(prompt, MAX_TOKENS).tokenIds();
            ALONE.put(key, known);
        }
        return known;
    }

    @ParameterizedTest(name = "{0}, {1} tokens")
    @MethodSource("lengths")
    void oneAtATime(Deployment deployment, int length) throws Exception {
        int[] prompt = Ledgers.prompt(length, length);
        int[] expected = alone(prompt);
        Prompts prefillBefore = deployment.prefill.prompts();
        Prompts decodeBefore = deployment.decode.prompts();

        Reply reply = deployment.router.complete(prompt, MAX_TOKENS);

        assertThat(reply.tokenIds()).isEqualTo(expected).isNotEmpty();
        int aligned = Ledgers.aligned(length, deployment.blockSize);
        assertThat(deployment.prefill.prompts().since(prefillBefore)).isEqualTo(new Prompts(length, 0, 0));
        assertThat(deployment.decode.prompts().since(decodeBefore))
                .isEqualTo(new Prompts(length - aligned, 0, aligned));
        assertThat(reply.cachedTokens()).isEqualTo(aligned);
    }

    @ParameterizedTest
    @MethodSource("deployments")
    void sixteenAtOnce(Deployment deployment) throws Exception {
        int block = deployment.blockSize;
        List<int[]> prompts = IntStream.range(0, 16)
                .mapToObj(i -> Ledgers.prompt(4 * block + (i % 4 == 0 ? 37 * i : i % 3 - 1), i + 1))
                .toList();
        List<int[]> expected = new ArrayList<>();
        for (int[] prompt : prompts) {
            expected.add(alone(prompt));
        }
        Prompts before = deployment.decode.prompts();

        List<int[]> answers = new ArrayList<>();
        try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Reply>> replies = prompts.stream()
                    .map(prompt -> clients.submit(() -> deployment.router.complete(prompt, MAX_TOKENS)))
                    .toList();
            for (Future<Reply> reply : replies) {
                answers.add(reply.get(120, TimeUnit.SECONDS).tokenIds());
            }
        }

        assertThat(answers).containsExactlyElementsOf(expected);
        int tokens = prompts.stream().mapToInt(prompt -> prompt.length).sum();
        int aligned = prompts.stream()
                .mapToInt(prompt -> Ledgers.aligned(prompt.length, block))
                .sum();
        assertThat(deployment.decode.prompts().since(before)).isEqualTo(new Prompts(tokens - aligned, 0, aligned));
    }
}
