package baton.cli.doctor;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.doctor.Finding.Level;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The findings about config.json files of published models, without weights. */
class ModelFindingsTest {
    private static final Path PUBLISHED = Path.of("../engine/src/test/resources/baton/engine/model/published");
    private static final long GIB = 1L << 30;

    @TempDir
    private Path model;

    private List<Finding> findings(String name, long available) throws IOException {
        Files.copy(PUBLISHED.resolve(name + ".json"), model.resolve("config.json"));
        return ModelFindings.of(model, OptionalLong.of(available)).findings();
    }

    private static Finding finding(List<Finding> findings, String name) {
        return findings.stream()
                .filter(each -> each.name().equals(name))
                .findFirst()
                .orElseThrow(() -> new AssertionError(name + " is not among " + findings));
    }

    @Test
    void sizesAndSpeedOfALlama() throws IOException {
        List<Finding> findings = findings("llama-3.1-8b", 256 * GIB);
        assertThat(finding(findings, "support").found()).startsWith("LlamaForCausalLM is supported");
        assertThat(finding(findings, "support").level()).isEqualTo(Level.ADVICE);
        assertThat(finding(findings, "weights").found())
                .startsWith("8,030 million parameters")
                .contains("15.0 GiB in bfloat16", "29.9 GiB in float32");
        assertThat(finding(findings, "KV cache").found()).contains("for each token", "tokens in the 1.0 GiB");
        assertThat(finding(findings, "memory for it").advice().orElseThrow()).contains("--max-model-len ");
        assertThat(finding(findings, "--tensor-parallel-size").found()).endsWith(" 1, 2, 4, 8, 16, 32");
        assertThat(finding(findings, "decode").found()).containsPattern("up to [0-9.,]+ tokens/s of one sequence");
        assertThat(finding(findings, "prefill").found()).containsPattern("up to [0-9.,]+ tokens/s");
        assertThat(findings).noneMatch(each -> each.level() == Level.BROKEN);
    }

    @Test
    void weightsInFp8AreUnpacked() throws IOException {
        List<Finding> findings = findings("llama-3.1-8b-fp8", 256 * GIB);
        assertThat(finding(findings, "packed weights").found())
                .startsWith("fp8 (e4m3) with a scale for each block of all rows and all columns: unpacked");
        assertThat(finding(findings, "weights").found()).contains("15.0 GiB in bfloat16");
    }

    /** As {@code serve}, which has that many positions unless more are asked for. */
    @Test
    void aLongRopeIsJudgedByItsDefaultPositions() throws IOException {
        List<Finding> findings = findings("../goldens/phi3-long/config", GIB << 4);
        assertThat(finding(findings, "decode").found()).contains("contexts of 64 tokens");
    }

    @Test
    void aModelThatDoesNotFitNeedsMoreMemory() throws IOException {
        Finding memory = finding(findings("mixtral-8x7b", 16 * GIB), "memory for it");
        assertThat(memory.level()).isEqualTo(Level.BROKEN);
        assertThat(memory.advice().orElseThrow()).startsWith("take a machine with ");
    }

    @Test
    void aPoolThatDoesNotFitIsToBeSmaller() throws IOException {
        Finding memory = finding(findings("gemma-3-1b", 3 * GIB + (1 << 20)), "memory for it");
        assertThat(memory.advice().orElseThrow()).containsPattern("--kv-cache-memory-bytes \\d+M --max-model-len \\d+");
    }

    @ParameterizedTest
    @CsvSource({"qwen2.5-7b-awq, quantization_config, true", "mamba-130m, architectures, false"})
    void refusedModelsHaveEstimatesWhereTheirSizesAreKnown(String name, String field, boolean hasEstimates)
            throws IOException {
        List<Finding> findings = findings(name, 256 * GIB);
        Finding refusal = finding(findings, "support");
        assertThat(refusal.level()).isEqualTo(Level.BROKEN);
        assertThat(refusal.found()).contains("config.json." + field + ": ");
        assertThat(findings.stream().map(Finding::name).anyMatch("decode"::equals))
                .isEqualTo(hasEstimates);
        assertThat(finding(findings, "estimates").found()).startsWith(hasEstimates ? "those below" : "none: ");
    }
}
