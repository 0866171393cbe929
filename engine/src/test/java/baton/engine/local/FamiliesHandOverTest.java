package baton.engine.local;

import static baton.engine.local.HandOverRequests.PREFILL;
import static baton.engine.local.HandOverRequests.ask;
import static baton.engine.local.HandOverRequests.askBoth;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Mixtures of experts and models with windows, handed over by {@code NixlConnector}: the decode instance answers as transformers did. */
@Timeout(value = 10, unit = TimeUnit.MINUTES)
class FamiliesHandOverTest {
    private static final String TOKENIZER = """
            {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false},
             "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}}
            """;

    @TempDir
    Path directory;

    /** The blocks of a prompt of 150 tokens that are handed over, for each group of layers: of a window of 20 positions the last two. */
    @ParameterizedTest(name = "{0}, TP {1} to {2}, at once: {3}")
    @CsvSource({
        "qwen3-moe, 1, 1, false, '10'",
        "qwen2-moe, 2, 1, false, '10'",
        "mixtral, 1, 2, false, '3'",
        "deepseek-v2-lite, 2, 1, false, '10'",
        "deepseek-v2, 1, 2, false, '10'",
        "deepseek-v3, 1, 1, false, '10'",
        "gemma2, 1, 1, false, '2 2 10'",
        "gemma2, 2, 1, true, '2 2 10'",
        "gemma3, 1, 2, true, '2 2 10'",
        "gpt-oss, 2, 1, false, '2 2 10'",
        "gpt-oss, 1, 1, true, '2 2 10'"
    })
    void theDecodeInstanceAnswersAsTransformersDid(
            String family, int prefillRanks, int decodeRanks, boolean atOnce, String blocks) throws Exception {
        copy(family);
        JsonNode golden = JsonMapper.builder().build().readTree(Files.readString(directory.resolve("golden.json")));
        try (LocalEngine prefill = start(prefillRanks);
                LocalEngine decode = start(decodeRanks)) {
            for (JsonNode each : golden.get("prompts")) {
                int[] prompt = ints(each.get("prompt_ids"));
                int[] expected = ints(each.get("output_ids"));
                String id = family + "-" + prompt.length;
                List<RequestOutput> both = atOnce ? askBoth(prefill, decode, id, prompt, expected.length) : List.of();
                RequestOutput first = atOnce ? both.getFirst() : ask(prefill, id, prompt, 1, PREFILL);
                JsonFields params = first.kvTransferParams().orElseThrow();
                RequestOutput second = atOnce ? both.getLast() : ask(decode, id, prompt, expected.length, params);
                assertThat(second.tokens()).as(id).isEqualTo(expected);
                assertThat(prompt.length - second.cachedTokens())
                        .as("computed of %s", id)
                        .isLessThanOrEqualTo(1);
                if (prompt.length == 150) {
                    assertThat(params.toJson()
                                    .get("remote_block_ids")
                                    .valueStream()
                                    .map(group -> String.valueOf(group.size()))
                                    .collect(Collectors.joining(" ")))
                            .isEqualTo(blocks);
                }
            }
            LLMTest.await(
                    () -> prefill.status().usedBlocks() == 0 && decode.status().usedBlocks() == 0);
        }
    }

    private void copy(String family) throws IOException, URISyntaxException {
        Path golden = Path.of(
                Objects.requireNonNull(FamiliesHandOverTest.class.getResource("/baton/engine/model/goldens/" + family))
                        .toURI());
        for (String name : List.of("config.json", "model.safetensors", "golden.json")) {
            Files.copy(golden.resolve(name), directory.resolve(name));
        }
        Files.writeString(directory.resolve("tokenizer.json"), TOKENIZER);
    }

    private LocalEngine start(int ranks) throws IOException {
        EngineConfig config = EngineConfig.of(directory)
                .dtype(DType.F32)
                .threads(1)
                .numBlocks(100)
                .parallel(ranks == 1 ? ParallelConfig.SINGLE : new ParallelConfig(ranks, 1, CpuBinding.NONE))
                .kvTransfer(KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                        .extra("side_channel_port", 0)
                        .extra("transfer_agent", "embedded")
                        .build())
                .build();
        return LocalEngine.start(config, EngineListener.NONE);
    }

    private static int[] ints(JsonNode array) {
        return array.values().stream().mapToInt(JsonNode::asInt).toArray();
    }
}
