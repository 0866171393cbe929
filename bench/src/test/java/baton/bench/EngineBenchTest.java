package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.tuple;
import static org.assertj.core.api.Assertions.within;

import baton.bench.EngineReport.Beside;
import baton.bench.EngineReport.ModelReport;
import baton.bench.EngineReport.Prefill;
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
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;

@Tag("thorough")
class EngineBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    @Test
    void measuresTheEmbeddedModel() throws IOException {
        List<String> progress = new ArrayList<>();
        EngineReport report = bench(Budget.of(Duration.ofMinutes(5)), Optional.of(Duration.ofMillis(2)), progress)
                .run(List.of(TINY_LEDGER), false);

        assertThat(report.threads()).isEqualTo(2);
        assertThat(progress)
                .containsExactly(
                        "tiny-ledger: round 1 of 3",
                        "tiny-ledger: round 2 of 3",
                        "tiny-ledger: round 3 of 3",
                        "tiny-ledger: through the engine");
        assertThat(report.leftOut()).isEmpty();
        assertThat(report.limits()).hasSize(3).allSatisfy(limits -> {
            for (Products products : List.of(limits.bf16(), limits.fp32())) {
                assertThat(products.flops()).isFinite().isPositive();
                assertThat(products.linearFlops()).isPositive().isLessThanOrEqualTo(products.flops());
                assertThat(products.burstFlops()).isFinite().isGreaterThanOrEqualTo(products.flops());
                assertThat(products.bytesPerSecond()).isFinite().isPositive();
            }
            assertThat(limits.readBytesPerSecond()).isFinite().isPositive();
            assertThat(limits.gemmFlops())
                    .isEqualTo(Math.max(limits.bf16().flops(), limits.fp32().flops()));
        });
        ModelReport model = report.models().getFirst();
        assertThat(model.prefills()).extracting(Prefill::tokens).containsExactly(512, 2048);
        assertThat(model.prefills()).allSatisfy(prefill -> {
            assertThat(report.share(prefill)).isFinite().isPositive();
            assertThat(prefill.shareBeside().orElseThrow()).isFinite().isPositive();
            assertThat(report.shareOfLinear(prefill)).isGreaterThanOrEqualTo(report.share(prefill));
            assertThat(prefill.timing().repetitions()).isGreaterThanOrEqualTo(2);
            assertThat(prefill.timing().best())
                    .isLessThanOrEqualTo(prefill.timing().median());
        });
        assertThat(model.decodes()).extracting(EngineReport.Decode::batch).containsExactly(1, 8, 32);
        assertThat(model.decodes())
                .allSatisfy(
                        decode -> assertThat(report.share(decode)).isFinite().isPositive());
        assertThat(EngineReport.speedUp(model, model.decodes().getFirst())).isEqualTo(1);

        ServingReport serving = model.serving().orElseThrow();
        assertThat(serving.decodes())
                .extracting(ServingReport.Decode::sequences, ServingReport.Decode::sampled)
                .containsExactly(tuple(1, false), tuple(8, false), tuple(32, false), tuple(32, true));
        assertThat(serving.decodes()).allSatisfy(decode -> {
            assertThat(decode.profile().steps())
                    .isGreaterThanOrEqualTo(20)
                    .isEqualTo(decode.timing().repetitions());
            assertThat(decode.profile().group().to()).isEqualTo(decode.sequences());
            assertThat(decode.overheadNanos())
                    .isPositive()
                    .isLessThan(decode.timing().median() * 1e9);
        });
        // Whole blocks, and not the last token: its logits are wanted.
        ServingReport.FirstToken firstToken = serving.firstToken().orElseThrow();
        assertThat(firstToken.cachedTokens()).isEqualTo(1984);
        assertThat(firstToken.share()).isPositive();

        StringWriter table = new StringWriter();
        report.print(new PrintWriter(table));
        assertThat(table.toString())
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
                        "first token of 2000 tokens",
                        "Counted for")
                .doesNotContain("NaN", "Infinity", "left out:");
        report.printProfile(new PrintWriter(table));
        assertThat(table.toString()).contains("decode 17-32 ", " sampling ", " p99 ");
        JsonNode json = report.toJson();
        assertThat(json.at("/models/0/engine/decode/2/step_microseconds/0/overhead")
                        .asDouble())
                .isEqualTo(serving.decodes().get(2).overheadNanos() / 1e3);
        assertThat(json.at("/models/0/engine/first_token/share_of_cold").asDouble())
                .isEqualTo(firstToken.share());
        assertThat(json.at("/models/0/prefill/1/share_of_gemm").asDouble())
                .isEqualTo(report.share(model.prefills().get(1)));
        assertThat(json.at("/models/0/decode/1/batch").asInt()).isEqualTo(8);
        assertThat(json.at("/limit_of_prefill/dtype").asString())
                .isEqualTo(report.gemmDType().torchName());
        assertThat(json.at("/limit_of_prefill/flops_per_second").asDouble()).isEqualTo(report.gemmFlops());
        assertThat(json.at("/limits/2/float32/gemm_flops_per_second").asDouble())
                .isEqualTo(report.limits().get(2).fp32().flops());
        assertThat(json.at("/machine/processors").asInt())
                .isEqualTo(Runtime.getRuntime().availableProcessors());
        assertThat(json.at("/left_out").size()).isZero();
    }

    @Test
    void casesBeyondTheBudgetAreNamed() throws IOException {
        long start = System.nanoTime();
        EngineReport report = bench(Budget.of(Duration.ofNanos(1)), Optional.empty(), new ArrayList<>())
                .run(List.of(TINY_LEDGER, TINY_LEDGER), true);

        assertThat(Duration.ofNanos(System.nanoTime() - start)).isLessThan(Duration.ofMinutes(1));
        // The limits and the smallest case come first and are always there.
        assertThat(report.limits()).isNotEmpty();
        ModelReport model = report.models().getFirst();
        assertThat(model.prefills()).isEmpty();
        assertThat(model.decodes())
                .extracting(
                        EngineReport.Decode::batch, decode -> decode.timing().repetitions())
                .containsExactly(tuple(1, 1));
        assertThat(report.leftOut())
                .hasSize(7)
                .allSatisfy(line -> assertThat(line).doesNotContain("NaN"));
        assertThat(report.leftOut().getFirst())
                .matches("tiny-ledger: decode batch 8: would take about \\d+\\.\\d s, 0\\.0 s of the budget are left");
        assertThat(report.leftOut().get(3)).startsWith("tiny-ledger: prefill 2048: ");
        assertThat(report.leftOut().get(4)).startsWith("tiny-ledger: through the engine: loading takes about");
        assertThat(report.leftOut().get(5)).contains("tiny-ledger: nothing of the budget is left");
        assertThat(report.leftOut().get(6)).startsWith("random-llama-1b: writing a checkpoint of 2.5 GB took longer");
        StringWriter table = new StringWriter();
        report.print(new PrintWriter(table));
        assertThat(table.toString().lines().toList().reversed().subList(0, 7))
                .allSatisfy(line -> assertThat(line).startsWith("left out: "));
        assertThat(report.toJson().at("/left_out").size()).isEqualTo(7);
    }

    @Test
    void eachKernelOfTheRunnerIsALine() {
        ModelReport model = new ModelReport(
                "m",
                1,
                DType.BF16,
                Quantization.NONE,
                List.of("bf16 by this", "fp32 by that"),
                List.of(
                        new OperatorRate("attention", Bound.ARITHMETIC, 0.6e9),
                        new OperatorRate("gate_proj", Bound.READING, 9e9)),
                List.of(),
                List.of(),
                Optional.empty());
        MachineLimits limits = new MachineLimits(new Products(1, 1, 1, 3), new Products(2, 2, 2, 2), 1);
        EngineReport report = new EngineReport(
                new Machine("p", Optional.empty(), 1, Map.of()),
                1,
                List.of(limits),
                List.of(model),
                List.of(),
                Optional.empty());
        StringWriter table = new StringWriter();
        report.print(new PrintWriter(table));

        assertThat(table.toString())
                .contains(
                        "\n  kernels: bf16 by this\n  kernels: fp32 by that\n  slow: attention: 0.6 Gflop/s per thread, ")
                .doesNotContain("gate_proj");
        assertThat(report.toJson().at("/models/0/operators/1/per_thread").asDouble())
                .isEqualTo(9e9);
        assertThat(report.toJson().at("/models/0/kernels/1").asString()).isEqualTo("fp32 by that");
        assertThat(report.gemmDType()).isEqualTo(DType.F32);
        assertThat(report.gemmFlops()).isEqualTo(2);
        assertThat(report.readBytesPerSecond()).isEqualTo(3);
        assertThat(table.toString().lines().filter(line -> line.contains("the limit of")))
                .satisfiesExactly(
                        line -> assertThat(line).contains("fp32 products", "the limit of prefill"),
                        line -> assertThat(line).contains("bf16 linear", "the limit of decode"));
    }

    private static EngineBench bench(Budget budget, Optional<Duration> each, List<String> progress) {
        return new EngineBench(OptionalInt.of(2), Optional.empty(), Quantization.NONE, budget, each, progress::add);
    }

    @Test
    void aModelWithoutATokenizerIsRefusedBeforeAnythingIsMeasured(@TempDir Path model) {
        List<String> progress = new ArrayList<>();
        EngineBench bench = bench(Budget.of(Duration.ofMinutes(5)), Optional.empty(), progress);
        assertThatThrownBy(() -> bench.run(List.of(model), false))
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

        assertThat(Work.decodeBytes(config, 8, 128, 2, 2)).isEqualTo(2 * (matrices + 8 * 128 * keysAndValues));
        assertThat(Work.decodeBytes(config, 8, 128, 1, 2)).isEqualTo(matrices + 2 * 8 * 128 * keysAndValues);
        // One token: every matrix once, and one query against one key in each head.
        assertThat(Work.prefillFlops(config, 1)).isEqualTo(2 * matrices + 4.0 * 16 * 32 * 64);
        // Attention grows with the square, the rest with the length; the last layer goes on for the last token only.
        double output = 128256.0 * 2048;
        double layer = (matrices - output) / 16;
        double lastKeysAndValues = 2.0 * 2048 * 8 * 64;
        double before = 2048 * (15 * layer + lastKeysAndValues);
        double pairs = 15 * (2048 * 2049 / 2.0) + 2048;
        assertThat(Work.prefillFlops(config, 2048))
                .isCloseTo(2 * (before + layer - lastKeysAndValues + output) + 4.0 * 32 * 64 * pairs, within(1.0));
    }

    @Test
    void aPrefillIsComparedWithTheMatrixProductsAroundIt() {
        Prefill prefill =
                Prefill.of(7, 60, List.of(1.0, 3.0), List.of(new Beside(1, 100), new Beside(2, 60), new Beside(4, 20)));

        assertThat(prefill.shareBeside()).hasValue(0.6);
        assertThat(Prefill.of(7, 60, List.of(1.0), List.of()).shareBeside()).isEmpty();
        assertThat(prefill.flopsPerSecond()).isEqualTo(60);
        assertThat(prefill.timing().repetitions()).isEqualTo(2);
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
