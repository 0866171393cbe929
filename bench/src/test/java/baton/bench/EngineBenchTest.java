package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.tuple;
import static org.assertj.core.api.Assertions.within;

import baton.bench.EngineReport.Beside;
import baton.bench.EngineReport.ModelReport;
import baton.bench.EngineReport.Prefill;
import baton.engine.model.ModelConfig;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;

class EngineBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    @Test
    void measuresTheEmbeddedModel() throws IOException {
        List<String> progress = new ArrayList<>();
        EngineReport report = new EngineBench(
                        OptionalInt.of(1), Quantization.NONE, Duration.ofMillis(2), 2, progress::add)
                .run(List.of(TINY_LEDGER), false);

        assertThat(report.threads()).isEqualTo(1);
        assertThat(progress)
                .containsExactly(
                        "tiny-ledger: round 1 of 2", "tiny-ledger: round 2 of 2", "tiny-ledger: through the engine");
        assertThat(report.limits()).hasSize(2).allSatisfy(limits -> {
            assertThat(limits.gemmFlops()).isFinite().isPositive();
            assertThat(limits.linearBytesPerSecond()).isFinite().isPositive();
            assertThat(limits.readBytesPerSecond()).isFinite().isPositive();
        });
        ModelReport model = report.models().getFirst();
        assertThat(model.prefills()).extracting(Prefill::tokens).containsExactly(512, 2048);
        assertThat(model.prefills()).allSatisfy(prefill -> {
            assertThat(report.share(prefill)).isPositive().isLessThan(1);
            assertThat(prefill.shareBeside()).isFinite().isPositive();
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
        assertThat(serving.firstToken().cachedTokens()).isEqualTo(1984);
        assertThat(serving.firstToken().share()).isPositive();

        StringWriter table = new StringWriter();
        report.print(new PrintWriter(table));
        assertThat(table.toString())
                .contains(
                        "tiny-ledger: ",
                        "prefill 512 ",
                        "prefill 2048 ",
                        "decode batch 8 at 128 ",
                        "through the engine",
                        "decode 32, top_p 0.95 ",
                        "first token of 2000 tokens",
                        "Counted for")
                .doesNotContain("NaN", "Infinity");
        report.printProfile(new PrintWriter(table));
        assertThat(table.toString()).contains("decode 17-32 ", " sampling ", " p99 ");
        JsonNode json = report.toJson();
        assertThat(json.at("/models/0/engine/decode/2/step_microseconds/0/overhead")
                        .asDouble())
                .isEqualTo(serving.decodes().get(2).overheadNanos() / 1e3);
        assertThat(json.at("/models/0/engine/first_token/share_of_cold").asDouble())
                .isEqualTo(serving.firstToken().share());
        assertThat(json.at("/models/0/prefill/1/share_of_gemm").asDouble())
                .isEqualTo(report.share(model.prefills().get(1)));
        assertThat(json.at("/models/0/decode/1/batch").asInt()).isEqualTo(8);
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
    void aPrefillIsComparedWithTheProductsBesideIt() {
        Prefill prefill =
                Prefill.of(7, 60, List.of(1.0, 3.0), List.of(new Beside(1, 100), new Beside(2, 60), new Beside(4, 20)));

        assertThat(prefill.shareBeside()).isEqualTo(0.6);
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
        assertThatThrownBy(() -> new EngineBench(OptionalInt.empty(), Quantization.NONE, Duration.ZERO, 1, _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("seconds: ");
        assertThatThrownBy(() ->
                        new EngineBench(OptionalInt.empty(), Quantization.NONE, Duration.ofSeconds(1), 0, _ -> {}))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("rounds: ");
    }
}
