package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The quotes in docs/operations.md agree with the code. */
class OperationsPageTest {
    private static final Pattern CODE = Pattern.compile("`([^`]+)`");
    private static final Pattern LOGGED = Pattern.compile("(INFO|WARN|ERROR) (.+)");
    private static final Pattern ANSWERED = Pattern.compile("([45]\\d\\d) (.+)");
    private static final Pattern METRIC = Pattern.compile("((?:baton|vllm):[a-z0-9_]+)(?:\\{.*)?");

    /** A text, perhaps in parts. */
    private static final String TEXT = "((?:\"(?:[^\"\\\\]|\\\\.)*\"\\s*\\+?\\s*)+)";

    /** A call of a logger with its text. */
    private static final Pattern LOG_CALL =
            Pattern.compile("\\b(?:LOG|log|logger)\\s*\\.\\s*(info|warn|error)\\s*\\(\\s*" + TEXT);

    private static final Pattern PART = Pattern.compile("\"((?:[^\"\\\\]|\\\\.)*)\"");

    /** The beginnings of vLLM's metric names where the code assembles the rest. */
    private static final List<String> PREFIXES =
            List.of("vllm:nixl_", "vllm:mooncake_", "vllm:kv_offload_", "baton:p2p_");

    private static final List<String> ENDINGS = List.of("_total", "_seconds", "");

    private static final Set<String> LOG_LINES = new TreeSet<>();
    private static final List<String> SOURCES = new ArrayList<>();

    @BeforeAll
    static void read() throws IOException {
        for (String source : ConfigurationPageTest.sources()) {
            Matcher call = LOG_CALL.matcher(source);
            while (call.find()) {
                LOG_LINES.add(call.group(1).toUpperCase(Locale.ROOT) + " " + joined(call.group(2)));
            }
            // Texts in parts become whole.
            SOURCES.add(source.replaceAll("\"\\s*\\+\\s*\"", "").replace("\\\"", "\""));
        }
    }

    private static String joined(String parts) {
        return PART.matcher(parts)
                .results()
                .map(part -> part.group(1))
                .collect(Collectors.joining())
                .replace("\\\"", "\"");
    }

    private static Stream<String> quoted(Pattern pattern) {
        return CODE.matcher(Docs.page("docs/operations.md").replace("\\|", "|").replace('\n', ' '))
                .results()
                .map(code -> code.group(1))
                .filter(code -> pattern.matcher(code).matches())
                .distinct();
    }

    static Stream<String> logLines() {
        return quoted(LOGGED);
    }

    static Stream<String> answers() {
        return Stream.concat(
                quoted(ANSWERED),
                // Parts of errors, and errors that end a start.
                Stream.of(
                        "503 up, but {} requests to it are under way, the most allowed",
                        "1 gives {} KV blocks of {} bytes, but one request of max_model_len={} needs {}; give at least {} bytes or lower max_model_len",
                        "1 no memory: the system refused {} bytes for {}",
                        "1 compatibility hash mismatch"));
    }

    static Stream<String> metrics() {
        return quoted(METRIC);
    }

    @Test
    void thePageHasTheQuotes() {
        assertThat(logLines()).hasSizeGreaterThan(30);
        assertThat(answers()).hasSizeGreaterThan(8);
        assertThat(metrics()).hasSizeGreaterThan(20);
    }

    @ParameterizedTest
    @MethodSource("logLines")
    void theCodeLogs(String line) {
        assertThat(LOG_LINES).contains(line);
    }

    @ParameterizedTest
    @MethodSource("answers")
    void theCodeAnswers(String answer) {
        String text = answer.substring(answer.indexOf(' ') + 1);
        String page = Docs.page("docs/operations.md").replaceAll("\\s+", " ");
        assertThat(page).contains(text);
        List<String> parts = Stream.of(text.split("\\{\\}"))
                .filter(part -> part.strip().length() > 2)
                .toList();
        assertThat(SOURCES)
                .as("a source with %s", parts)
                .anyMatch(source ->
                        parts.stream().allMatch(part -> source.contains(part) || source.contains(part.strip())));
    }

    @ParameterizedTest
    @MethodSource("metrics")
    void theCodeMeasures(String metric) {
        Matcher name = METRIC.matcher(metric);
        assertThat(name.matches()).isTrue();
        List<String> written = ENDINGS.stream()
                .filter(ending -> name.group(1).endsWith(ending))
                .map(ending -> name.group(1).substring(0, name.group(1).length() - ending.length()))
                .flatMap(base -> Stream.concat(
                        Stream.of(base),
                        PREFIXES.stream().filter(base::startsWith).map(prefix -> base.substring(prefix.length()))))
                .map(base -> "\"" + base + "\"")
                .toList();
        assertThat(SOURCES)
                .as("one of %s", written)
                .anyMatch(source -> written.stream().anyMatch(source::contains));
    }
}
