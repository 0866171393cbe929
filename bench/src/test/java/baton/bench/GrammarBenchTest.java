package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.model.ModelConfig;
import baton.kv.DType;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class GrammarBenchTest {
    @Test
    void measuresMasksOfEachSchema() throws Exception {
        ModelConfig config = new ModelConfig(
                "random", 300, 16, 32, 1, 2, 1, 8, 128, 1e-5, 10000, Optional.empty(), true, DType.BF16);
        ObjectNode figures = JsonNodeFactory.instance.objectNode();
        List<String> schemas = new ArrayList<>();
        RandomModel.with(config, Duration.ofMinutes(1), _ -> {}, directory -> {
            try {
                new GrammarBench(directory, Optional.empty(), 2, schemas::add).run(figures);
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
            return 0;
        });
        assertThat(figures.path("masks")).hasSameSizeAs(schemas).isNotEmpty();
        for (JsonNode row : figures.path("masks")) {
            assertThat(row.path("engine").asString()).isEqualTo("baton");
            assertThat(row.path("compile").asDouble()).isPositive();
            assertThat(row.path("masks").asInt()).isPositive();
            assertThat(row.path("again").path("p99").asDouble())
                    .isGreaterThanOrEqualTo(row.path("again").path("median").asDouble());
        }
        assertThat(GrammarBench.FIGURES.text(figures)).contains("Masks of 3", "100 properties", "recursive");
    }

    @Test
    @Tag("thorough")
    void hostileFormatsAreCompiledOrRefused() throws Exception {
        ObjectNode figures = JsonNodeFactory.instance.objectNode();
        List<String> formats = new ArrayList<>();
        new HostileFormats(1, formats::add).run(figures);
        assertThat(figures.path("hostile")).hasSameSizeAs(formats).isNotEmpty();
        for (JsonNode row : figures.path("hostile")) {
            assertThat(row.path("result").asString())
                    .as(row.toString())
                    .matches("compiled|refused: (schema|grammar|regex).*");
            assertThat(row.path("thread").asDouble()).isPositive();
        }
        assertThat(HostileFormats.FIGURES.text(figures)).contains("400 ranges of numbers");
    }
}
