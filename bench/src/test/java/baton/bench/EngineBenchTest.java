package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.bench.ForwardBench.Beside;
import baton.bench.ForwardBench.Prefill;
import baton.bench.frame.Budget;
import baton.bench.frame.Timing;
import baton.engine.model.Device;
import baton.engine.model.MachineLimits;
import baton.engine.model.MachineLimits.Products;
import baton.engine.model.ModelConfig;
import baton.engine.model.OperatorRate;
import baton.engine.model.OperatorRate.Bound;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import baton.kv.DType;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

@Tag("thorough")
class EngineBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    @Test
    void measuresTheEmbeddedModel() throws IOException {
        List<String> progress = new ArrayList<>();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        bench(Budget.of(Duration.ofMinutes(5)), Optional.of(Duration.ofMillis(2)), progress)
                .run(List.of(TINY_LEDGER), List.of(), json);
        assertThat(json.path("threads").asInt()).isEqualTo(2);
        assertThat(progress)
                .containsExactly(
                        "tiny-ledger: round 1 of 3",
                        "tiny-ledger: round 2 of 3",
                        "tiny-ledger: round 3 of 3",
                        "tiny-ledger: through the engine");
        assertThat(json.path("left_out")).isEmpty();
        assertThat(json.path("limits")).hasSize(3).allSatisfy(limits -> {
            for (JsonNode products : List.of(limits.path("bfloat16"), limits.path("float32"))) {
                double flops = products.path("gemm_flops_per_second").asDouble();
                assertThat(flops).isFinite().isPositive();
                assertThat(products.path("linear_flops_per_second").asDouble())
                        .isPositive()
                        .isLessThanOrEqualTo(flops);
                assertThat(products.path("gemm_burst_flops_per_second").asDouble())
                        .isFinite()
                        .isGreaterThanOrEqualTo(flops);
                assertThat(products.path("linear_bytes_per_second").asDouble())
                        .isFinite()
                        .isPositive();
            }
            assertThat(limits.path("read_bytes_per_second").asDouble())
                    .isFinite()
                    .isPositive();
            assertThat(limits.path("gemm_flops_per_second").asDouble())
                    .isEqualTo(Math.max(
                            limits.at("/bfloat16/gemm_flops_per_second").asDouble(),
                            limits.at("/float32/gemm_flops_per_second").asDouble()));
        });
        JsonNode model = json.at("/models/0");
        assertThat(ints(model.path("prefill"), "tokens")).containsExactly(512, 2048);
        double gemm = json.at("/limit_of_prefill/flops_per_second").asDouble();
        assertThat(model.path("prefill")).allSatisfy(prefill -> {
            assertThat(prefill.path("share_of_gemm").asDouble())
                    .isPositive()
                    .isEqualTo(prefill.path("flops_per_second").asDouble() / gemm);
            assertThat(prefill.path("share_of_gemm_beside").asDouble())
                    .isFinite()
                    .isPositive();
            assertThat(prefill.path("share_of_linear").asDouble())
                    .isGreaterThanOrEqualTo(prefill.path("share_of_gemm").asDouble());
            assertThat(prefill.path("repetitions").asInt()).isGreaterThanOrEqualTo(2);
            assertThat(prefill.path("best_seconds").asDouble())
                    .isLessThanOrEqualTo(prefill.path("median_seconds").asDouble());
        });
        assertThat(ints(model.path("decode"), "batch")).containsExactly(1, 8, 32);
        assertThat(model.path("decode"))
                .allSatisfy(decode -> assertThat(decode.path("share_of_read").asDouble())
                        .isFinite()
                        .isPositive());
        assertThat(model.at("/decode/0/speed_up").asDouble()).isEqualTo(1);
        JsonNode decodes = model.at("/engine/decode");
        assertThat(ints(decodes, "sequences")).containsExactly(1, 8, 32, 32);
        assertThat(decodes.valueStream().map(decode -> decode.path("sampled").asBoolean()))
                .containsExactly(false, false, false, true);
        assertThat(decodes).allSatisfy(decode -> {
            assertThat(decode.path("repetitions").asInt()).isGreaterThanOrEqualTo(20);
            assertThat(decode.at("/step_microseconds/0/overhead").asDouble())
                    .isPositive()
                    .isLessThan(decode.path("median_seconds").asDouble() * 1e6);
            assertThat(decode.path("share_of_forward").asDouble()).isPositive();
        });
        // Whole blocks, and not the last token: its logits are wanted.
        assertThat(model.at("/engine/first_token/cached_tokens").asInt()).isEqualTo(1984);
        assertThat(model.at("/engine/first_token/share_of_cold").asDouble()).isPositive();
        assertThat(model.at("/engine/format/share_of_free").asDouble())
                .isEqualTo(model.at("/engine/format/free/median_seconds").asDouble()
                        / model.at("/engine/format/formatted/median_seconds").asDouble());
        assertThat(EngineBench.FIGURES.text(json))
                .contains(
                        "instruction sets: ",
                        "caps: ",
                        "the limit of prefill",
                        "the limit of decode",
                        "tiny-ledger: ",
                        "  kernels: ",
                        "prefill 512 ",
                        "prefill 2048 ",
                        "decode batch 8 at 128 ",
                        "through the engine",
                        "decode 32, top_p 0.95 ",
                        "decode 8 of a JSON schema: ",
                        "first token of 2000 tokens",
                        "Counted for")
                .doesNotContain("NaN", "Infinity", "left out:");
        assertThat(EngineBench.profile(json)).contains("decode 17-32 ", " sampling ", " p99 ");
        assertThat(json.at("/machine/processors").asInt())
                .isEqualTo(Runtime.getRuntime().availableProcessors());
    }

    private static List<Integer> ints(JsonNode array, String field) {
        return array.valueStream().map(each -> each.path(field).asInt()).toList();
    }

    @Test
    void casesBeyondTheBudgetAreNamed() throws IOException {
        long start = System.nanoTime();
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        bench(Budget.of(Duration.ofNanos(1)), Optional.empty(), new ArrayList<>())
                .run(List.of(TINY_LEDGER, TINY_LEDGER), List.of(RandomCheckpoint.llama1b()), json);
        assertThat(Duration.ofNanos(System.nanoTime() - start)).isLessThan(Duration.ofMinutes(3));
        // The limits and the smallest case come first and are always there.
        assertThat(json.path("limits")).isNotEmpty();
        JsonNode model = json.at("/models/0");
        assertThat(model.path("prefill")).isEmpty();
        assertThat(ints(model.path("decode"), "batch")).containsExactly(1);
        assertThat(ints(model.path("decode"), "repetitions")).containsExactly(1);
        List<String> leftOut =
                json.path("left_out").valueStream().map(JsonNode::asString).toList();
        assertThat(leftOut).hasSize(7).allSatisfy(line -> assertThat(line).doesNotContain("NaN"));
        assertThat(leftOut.getFirst())
                .matches("tiny-ledger: decode batch 8: would take about \\d+\\.\\d s, 0\\.0 s of the budget are left");
        assertThat(leftOut.get(3)).startsWith("tiny-ledger: prefill 2048: ");
        assertThat(leftOut.get(4)).startsWith("tiny-ledger: through the engine: loading takes about");
        assertThat(leftOut.get(5)).contains("tiny-ledger: nothing of the budget is left");
        assertThat(leftOut.get(6)).startsWith("random-llama-1b: writing a checkpoint of 2.5 GB took longer");
        assertThat(EngineBench.FIGURES.text(json).lines().toList().reversed().subList(0, 7))
                .allSatisfy(line -> assertThat(line).startsWith("left out: "));
    }

    @Test
    void eachKernelOfTheRunnerIsALine() {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        EngineFigures.model(
                json.putArray("models").addObject(),
                RandomCheckpoint.llama1b(),
                DType.BF16,
                Quantization.NONE,
                List.of("bf16 by this", "fp32 by that"),
                List.of(
                        new OperatorRate("attention", Bound.ARITHMETIC, 0.6e9),
                        new OperatorRate("gate_proj", Bound.READING, 9e9)));
        EngineFigures.limits(json, List.of(new MachineLimits(new Products(1, 1, 1, 3), new Products(2, 2, 2, 2), 1)));
        String table = EngineBench.FIGURES.text(json);
        assertThat(table)
                .contains(
                        "\n  kernels: bf16 by this\n  kernels: fp32 by that\n  slow: attention: 0.6 Gflop/s per thread, ")
                .doesNotContain("gate_proj");
        assertThat(json.at("/models/0/operators/1/per_thread").asDouble()).isEqualTo(9e9);
        assertThat(json.at("/models/0/kernels/1").asString()).isEqualTo("fp32 by that");
        assertThat(json.at("/limit_of_prefill/dtype").asString()).isEqualTo("float32");
        assertThat(json.at("/limit_of_prefill/flops_per_second").asDouble()).isEqualTo(2);
        assertThat(json.at("/limit_of_decode/bytes_per_second").asDouble()).isEqualTo(3);
        assertThat(table.lines().filter(line -> line.contains("the limit of")))
                .satisfiesExactly(
                        line -> assertThat(line).contains("fp32 products", "the limit of prefill"),
                        line -> assertThat(line).contains("bf16 linear", "the limit of decode"));
    }

    @Test
    void onlyModelsThatTheProcessorComputesHaveSharesOfItsLimits() {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        ArrayNode models = json.putArray("models");
        for (boolean onProcessor : new boolean[] {true, false}) {
            models.addObject()
                    .put("on_processor", onProcessor)
                    .putArray("prefill")
                    .addObject()
                    .put("flops_per_second", 1.0);
        }
        EngineFigures.limits(json, List.of(new MachineLimits(new Products(1, 1, 1, 3), new Products(2, 2, 2, 2), 1)));
        assertThat(json.at("/models/0/prefill/0/share_of_gemm").asDouble()).isEqualTo(0.5);
        assertThat(json.at("/models/1/prefill/0/share_of_gemm").isMissingNode()).isTrue();
    }

    private static EngineBench bench(Budget budget, Optional<Duration> each, List<String> progress) {
        return new EngineBench(
                OptionalInt.of(2), Device.CPU, Optional.empty(), Quantization.NONE, budget, each, progress::add);
    }

    @Test
    void aModelWithoutATokenizerIsRefusedBeforeAnythingIsMeasured(@TempDir Path model) {
        List<String> progress = new ArrayList<>();
        EngineBench bench = bench(Budget.of(Duration.ofMinutes(5)), Optional.empty(), progress);
        assertThatThrownBy(() -> bench.run(List.of(model), List.of(), JsonNodeFactory.instance.objectNode()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(model + "/tokenizer.json");
        assertThat(progress).isEmpty();
    }

    @Test
    void countsTheWorkOfLlama1b() {
        ModelConfig config = RandomCheckpoint.llama1b();
        double norms = (2.0 * config.layers() + 1) * config.hiddenSize();
        double matrices = config.parameters() - norms;
        double keysAndValues = 2.0 * 16 * 8 * 64;

        assertThat(LeastWork.decodeBytes(config, 8, 128, 2, 2)).isEqualTo(2 * (matrices + 8 * 128 * keysAndValues));
        assertThat(LeastWork.decodeBytes(config, 8, 128, 1, 2)).isEqualTo(matrices + 2 * 8 * 128 * keysAndValues);
        // One token: every matrix once, and one query against one key in each head.
        assertThat(LeastWork.prefillFlops(config, 1)).isEqualTo(2 * matrices + 4.0 * 16 * 32 * 64);
        // Attention grows with the square, the rest with the length; the last layer goes on for the last token only.
        double output = 128256.0 * 2048;
        double layer = (matrices - output) / 16;
        double lastKeysAndValues = 2.0 * 2048 * 8 * 64;
        double before = 2048 * (15 * layer + lastKeysAndValues);
        double pairs = 15 * (2048 * 2049 / 2.0) + 2048;
        assertThat(LeastWork.prefillFlops(config, 2048))
                .isCloseTo(2 * (before + layer - lastKeysAndValues + output) + 4.0 * 32 * 64 * pairs, within(1.0));
    }

    @Test
    void countsTheExpertsThatTokensUse() {
        ModelConfig config = RandomCheckpoint.experts();
        double rest = 4 * (2048 * 2048 * 4 + 2048 * 64) + 32768.0 * 2048;
        double expert = 3 * 2048 * 1024;
        assertThat(LeastWork.prefillFlops(config, 1)).isEqualTo(2 * (rest + 4 * 8 * expert) + 4.0 * 4 * 16 * 128);
        double of8Tokens = 64 * (1 - Math.pow(7 / 8.0, 8));
        double cached = 2.0 * 4 * 16 * 128 * 128 * 8;
        assertThat(LeastWork.decodeBytes(config, 8, 128, 2, 2))
                .isCloseTo(2 * (rest + 4 * of8Tokens * expert + cached), within(1.0));
    }

    @Test
    void aPrefillIsComparedWithTheMatrixProductsAroundIt() {
        List<Beside> beside = List.of(new Beside(1, 100), new Beside(2, 60), new Beside(4, 20));
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new Prefill(7, 60, List.of(1.0, 3.0), beside).write(json);
        assertThat(json.path("share_of_gemm_beside").asDouble()).isEqualTo(0.6);
        assertThat(json.path("flops_per_second").asDouble()).isEqualTo(60);
        assertThat(json.path("repetitions").asInt()).isEqualTo(2);
        ObjectNode alone = JsonNodeFactory.instance.objectNode();
        new Prefill(7, 60, List.of(1.0), List.of()).write(alone);
        assertThat(alone.has("share_of_gemm_beside")).isFalse();
    }

    @Test
    void medianOfEvenAndOddNumbers() {
        assertThat(Timing.median(List.of(3.0, 1.0, 2.0))).isEqualTo(2);
        assertThat(Timing.median(List.of(4.0, 1.0, 2.0, 3.0))).isEqualTo(2.5);
    }

    @Test
    void settingsThatDoNotFitAreNamed() {
        Budget budget = Budget.of(Duration.ofSeconds(1));
        assertThatThrownBy(() -> bench(budget, Optional.of(Duration.ZERO), List.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("seconds: ");
        assertThatThrownBy(() -> Budget.of(Duration.ofSeconds(-1)))
                .isInstanceOf(ConfigException.class)
                .hasMessage("budget: is -1.0 s, must be positive");
    }
}
