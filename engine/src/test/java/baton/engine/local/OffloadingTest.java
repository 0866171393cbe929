package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** OffloadingConnector behind a pool that is much smaller than the prompts: answers equal those of an engine alone. */
class OffloadingTest {
    private static final int PROMPTS = Integer.getInteger("tests.prompts", 40);
    private static final SamplingParams FOUR =
            SamplingParams.builder().temperature(0).ignoreEos(true).maxTokens(4).build();

    private static List<int[]> prompts;
    private static List<int[]> alone;

    private final TransferredTokens transferred = new TransferredTokens();

    @TempDir
    Path directory;

    /** Prompts that share beginnings of some hundred tokens. */
    @BeforeAll
    static void computeAlone() {
        Random random = new Random(5);
        List<int[]> beginnings = IntStream.range(0, 6)
                .mapToObj(i -> LLMTest.prompt(i, 200 + random.nextInt(500)))
                .toList();
        prompts = IntStream.range(0, PROMPTS)
                .mapToObj(i -> {
                    int[] beginning = beginnings.get(random.nextInt(beginnings.size()));
                    int[] end = LLMTest.prompt(100 + i, 1 + random.nextInt(120));
                    int shared = 1 + random.nextInt(beginning.length);
                    return IntStream.concat(Arrays.stream(beginning, 0, shared), Arrays.stream(end))
                            .toArray();
                })
                .toList();
        try (LLM llm = new LLM(LLMTest.config().build())) {
            alone = tokens(llm.generateTokens(prompts, FOUR));
        }
    }

    private static List<int[]> tokens(List<RequestOutput> outputs) {
        return outputs.stream().map(RequestOutput::tokens).toList();
    }

    private static EngineConfigBuilder config(Map<String, Object> settings) {
        KvTransferConfig.Builder transfer =
                KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH).loadFailurePolicy(LoadFailurePolicy.FAIL);
        settings.forEach(transfer::extra);
        // The engine waits for slow tiers: blocks that come too late would be computed.
        transfer.extra("load_timeout_seconds", 30);
        return LLMTest.config().numBlocks(80).maxModelLen(1200).kvTransfer(transfer.build());
    }

    private Map<String, Object> files() {
        return Map.of("type", "fs", "root_dir", directory.toString());
    }

    /** The answers in small groups, so that prompts come again after others have evicted them. */
    private List<RequestOutput> answers(LLM llm) {
        List<RequestOutput> outputs = new ArrayList<>();
        for (int from = 0; from < PROMPTS; from += 5) {
            outputs.addAll(transferred.generate(llm, prompts.subList(from, Math.min(from + 5, PROMPTS)), FOUR));
        }
        return outputs;
    }

    private static void assertEqualToAlone(List<RequestOutput> outputs) {
        for (int i = 0; i < PROMPTS; i++) {
            assertThat(outputs.get(i).tokens()).as("prompt %d", i).isEqualTo(alone.get(i));
        }
    }

    @ParameterizedTest(
            name =
                    "memory of {0} MB, {1}, chunks of {2}, files: {3}, tensor parallel size {4}, {5} bytes within a step")
    @CsvSource({
        "200, lru, 1, false, 1, 1000000",
        "1, arc, 3, true, 1, 0",
        "2, lru, 1, true, 2, 1000000000",
    })
    void answersEqualThoseOfAnEngineAlone(
            int megabytes, String eviction, int chunk, boolean files, int ranks, long within) {
        EngineConfig config = config(Map.of(
                        "cpu_bytes_to_use",
                        megabytes * 1e6,
                        "eviction_policy",
                        eviction,
                        "blocks_per_chunk",
                        chunk,
                        "offload_prompt_only",
                        false,
                        "sync_load_budget_bytes",
                        within,
                        "secondary_tiers",
                        files ? List.of(files()) : List.of()))
                .parallel(new ParallelConfig(ranks, 1, CpuBinding.NONE))
                .build();
        try (LLM llm = new LLM(config)) {
            assertEqualToAlone(answers(llm));
            int before = transferred.count();
            assertEqualToAlone(answers(llm));
            assertThat(transferred.count() - before).isPositive();
        }
    }

    @Test
    void aRestartedEngineLoadsAllThatTheOneBeforeHadComputed() throws IOException {
        EngineConfig config = config(Map.of("cpu_bytes_to_use", 2e8, "secondary_tiers", List.of(files())))
                .build();
        int[] longest = prompts.stream().max((a, b) -> a.length - b.length).orElseThrow();
        int blocks = (longest.length - 1) / 16;
        try (LLM llm = new LLM(config)) {
            llm.generateTokens(List.of(longest), FOUR);
        }
        assertThat(OffloadingFaultsTest.values(directory)).hasSizeGreaterThanOrEqualTo(blocks);
        try (LLM llm = new LLM(config)) {
            RequestOutput output =
                    transferred.generate(llm, List.of(longest), FOUR).getFirst();
            assertThat(transferred.count()).isEqualTo(16 * blocks);
            assertThat(output.tokens()).isEqualTo(alone.get(prompts.indexOf(longest)));
        }
    }

    @Test
    void anEngineIsAtRestOnceAllThatWasComputedIsStored() {
        EngineConfig config = config(Map.of("cpu_bytes_to_use", 2e8, "secondary_tiers", List.of(files())))
                .build();
        try (LLM llm = new LLM(config)) {
            for (int i = 0; i < 5; i++) {
                llm.generateTokens(List.of(prompts.get(i)), FOUR);
                LLMTest.await(() -> llm.engine().status().isAtRest());
            }
        }
    }

    @Test
    void damagedFilesAreMisses() throws IOException {
        EngineConfig config = config(Map.of("cpu_bytes_to_use", 2e8, "secondary_tiers", List.of(files())))
                .build();
        try (LLM llm = new LLM(config)) {
            answers(llm);
        }
        Random random = new Random(3);
        List<Path> files = OffloadingFaultsTest.values(directory);
        assertThat(files).isNotEmpty();
        for (Path file : files) {
            byte[] bytes = Files.readAllBytes(file);
            switch (random.nextInt(4)) {
                case 0 -> {
                    bytes[random.nextInt(bytes.length)] ^= 4;
                    Files.write(file, bytes);
                }
                case 1 -> Files.write(file, Arrays.copyOf(bytes, random.nextInt(bytes.length)));
                case 2 -> Files.write(file, new byte[100], StandardOpenOption.WRITE);
                default -> {}
            }
        }
        try (LLM llm = new LLM(config)) {
            assertEqualToAlone(answers(llm));
        }
    }
}
