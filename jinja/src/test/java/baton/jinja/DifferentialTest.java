package baton.jinja;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Random templates, which Python's Jinja2 renders as well ({@code differential.py} makes them). The environment variable
 * {@code BATON_PYTHON} names the interpreter, else it is {@code python3}; the test is skipped where it has no package {@code jinja2}.
 */
@Tag("peers")
@Timeout(600)
class DifferentialTest {
    private static final String PYTHON =
            Optional.ofNullable(System.getenv("BATON_PYTHON")).orElse("python3");
    private static final long SEED = Long.getLong("tests.seed", 14);
    private static final int TEMPLATES = Integer.getInteger("tests.templates", 3000);

    /**
     * Of a thousand templates. The differences that are left: constants that Jinja2 folds although they fail, complex numbers, and
     * objects that Python prints or hashes by their address.
     */
    private static final int MOST_DIFFERENT = 5;

    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final Clock CLOCK = Clock.fixed(Instant.parse("2026-03-05T14:07:09Z"), ZoneOffset.UTC);

    @Test
    void rendersAsJinja() throws Exception {
        assumeTrue(hasJinja(), PYTHON + " has no package jinja2");
        Path script = resource("differential.py");
        Process python = new ProcessBuilder(PYTHON, "-B", script.toString(), "" + SEED, "" + TEMPLATES)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        int rendered = 0;
        List<String> different = new ArrayList<>();
        try (BufferedReader lines = python.inputReader()) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                JsonNode entry = JSON.readTree(line);
                String expected = entry.path("expected").isNull()
                        ? null
                        : entry.path("expected").asString();
                String problem = "";
                String text = null;
                try {
                    text = render(entry);
                } catch (JinjaException e) {
                    problem = e.getMessage();
                }
                rendered += expected == null ? 0 : 1;
                if (!Objects.equals(expected, text)) {
                    different.add(entry.path("template") + "\n  Jinja2: " + expected
                            + entry.path("error").asString("") + "\n  Baton:  " + text + problem);
                }
            }
        } finally {
            python.destroy();
        }
        assertThat(python.waitFor(60, TimeUnit.SECONDS)).isTrue();
        assertThat(python.exitValue()).isZero();
        assertThat(rendered).isGreaterThan(TEMPLATES / 4);
        System.out.printf(
                "DifferentialTest: seed %d: %d templates, of which Jinja2 renders %d; Baton does otherwise with %d%n%s%n",
                SEED, TEMPLATES, rendered, different.size(), String.join("\n", different));
        assertThat(different).hasSizeLessThanOrEqualTo(MOST_DIFFERENT * TEMPLATES / 1000);
    }

    private static String render(JsonNode entry) {
        Map<String, JsonNode> variables = new LinkedHashMap<>();
        entry.path("variables").properties().forEach(variable -> variables.put(variable.getKey(), variable.getValue()));
        return Template.compile(entry.path("template").asString()).render(variables, CLOCK);
    }

    private static boolean hasJinja() throws InterruptedException {
        try {
            Process python = new ProcessBuilder(PYTHON, "-c", "import jinja2").start();
            return python.waitFor(60, TimeUnit.SECONDS) && python.exitValue() == 0;
        } catch (IOException e) {
            return false;
        }
    }

    private static Path resource(String name) throws URISyntaxException {
        return Path.of(Objects.requireNonNull(DifferentialTest.class.getResource("/baton/jinja/" + name))
                .toURI());
    }
}
