package baton.jinja;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

@Execution(ExecutionMode.CONCURRENT)
class TemplateTest {
    private static final Clock CLOCK = Clock.fixed(Instant.parse("2026-03-05T14:07:09Z"), ZoneOffset.UTC);
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    /** Of the processor's time: a machine may be busy with other work. */
    private static final Duration BOUND = Duration.ofSeconds(60);

    /** Cases with the results of real Jinja2 ({@code jinja_cases.py} writes them). */
    @TestFactory
    Stream<DynamicTest> rendersAsPythonsJinja() throws IOException {
        try (InputStream file =
                Objects.requireNonNull(TemplateTest.class.getResourceAsStream("/baton/jinja/jinja-cases.json"))) {
            JsonNode cases = JsonMapper.builder().build().readTree(file);
            assertThat(cases.size()).isGreaterThan(700);
            return cases.valueStream()
                    .map(entry -> DynamicTest.dynamicTest(entry.path("name").asString(), () -> assertOutcome(entry)));
        }
    }

    private static void assertOutcome(JsonNode entry) {
        String template = entry.path("template").asString();
        Map<String, JsonNode> variables = new LinkedHashMap<>();
        entry.path("variables").properties().forEach(variable -> variables.put(variable.getKey(), variable.getValue()));
        if (entry.path("fails").asBoolean(false)) {
            assertThat(catchThrowable(() -> Template.compile(template).render(variables, CLOCK)))
                    .as(template)
                    .isInstanceOf(JinjaException.class);
        } else {
            assertThat(Template.compile(template).render(variables, CLOCK))
                    .as(template)
                    .isEqualTo(entry.path("expected").asString());
        }
    }

    @Test
    void errorsNameTheLine() {
        for (String template : List.of(
                "a\n\n{{ nope.x }}", "a\n{# c\n #}{{ 1 / 0 }}", "\n\n{% if %}", "a\n{% set x =\n 1 + none %}")) {
            assertThatThrownBy(() -> render(template))
                    .as(template)
                    .isInstanceOfSatisfying(
                            JinjaException.class, e -> assertThat(e.line()).isEqualTo(3))
                    .hasMessageStartingWith("line 3: ");
        }
        assertThatThrownBy(() -> render("{{ raise_exception('roles must alternate') }}"))
                .hasMessage("line 1: roles must alternate");
    }

    /** Programs that would not end, or fill the memory, or overflow the stack. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "{{ 'a' * 10 ** 12 }}",
                "{% set l = [1] * 10 ** 9 %}",
                "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
                "{% set ns = namespace(s='a' * 9999999, l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [ns.s ~ i] %}{% endfor %}",
                "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
                "{% set ns = namespace(l=[]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
                "{% set ns = namespace(l=[], m=[]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
                "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
                "{% for i in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
                "{{ 9 ** 99999 }}",
                "{{ '%99999999d' % 1 }}",
                "{{ 'a'.center(999999999) }}",
                "{{ 'a'|indent(999999999, true) }}",
                "{% set a = 'ab' * 99999 %}{{ a.replace('', a) }}",
                "{% set l = range(99999)|list %}{{ l|select('in', l)|list }}",
            })
    void hostileTemplatesEnd(String template) {
        Template compiled = Template.compile(template);
        long start = THREADS.getCurrentThreadCpuTime();
        assertThatThrownBy(() -> compiled.render(Map.of(), CLOCK)).isInstanceOf(JinjaException.class);
        assertThat(Duration.ofNanos(THREADS.getCurrentThreadCpuTime() - start)).isLessThan(BOUND);
    }

    /** As {@link #hostileTemplatesEnd}, with filters, formats, dictionaries, generators and recursion. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "{{ range(10 ** 9) }}",
                "{{ '%1000000000d' % 1 }}",
                "{{ '%.1000000000f' % 1 }}",
                "{{ '%*d' % (1000000000, 1) }}",
                "{{ '{:1000000000}'.format(1) }}",
                "{{ '{:01000000000,}'.format(1) }}",
                "{{ '{:.1000000000f}'.format(1.5) }}",
                "{{ '{:{}}'.format('a', 1000000000) }}",
                "{{ ('{0}' * 99999).format('a' * 9999) }}",
                "{{ ('%(a)s' * 99999) % {'a': 'a' * 9999} }}",
                "{{ ('a' * 9999999)|urlencode }}",
                "{{ 'a\t'.expandtabs(1000000000) }}",
                "{{ 'a'.zfill(1000000000) }}",
                "{{ [1]|slice(1000000000)|list }}",
                "{{ [1]|batch(1000000000, 'x')|list }}",
                "{{ [[]]|tojson(indent=1000000000) }}",
                "{{ range(99999)|join('a' * 9999) }}",
                "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
                "{% macro m() %}{{ caller() }}{{ m(*varargs, **kwargs) }}{% endmacro %}{% call m() %}{% endcall %}",
                "{% macro m() %}{{ m(1, *varargs) }}{% endmacro %}{{ m() }}",
                "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
                "{% set ns = namespace(g=[1]) %}{% for i in range(9999) %}{% set ns.g = ns.g|map('string') %}{% endfor %}{{ ns.g|list }}",
                "{% set ns = namespace(t=()) %}{% for i in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: 1} }}",
                "{% set ns = namespace(t=()) %}{% for i in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ [ns.t]|unique|list }}",
                "{% set ns = namespace(t=()) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {}[ns.t] }}",
                "{% set ns = namespace(t=()) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {1: 2}.get(ns.t) }}",
                "{% set l = [1] * 99999 %}{% for i in l %}{% set d = dict(l|map('string')|map('list')|map('batch', 2)) %}{% endfor %}",
                "{% set l = range(99999) %}{% for i in l %}{{ l|groupby(0)|length }}{% endfor %}",
                "{{ 10 ** 99999 / 7 }}",
                "{{ '9' * 1999 }}{{ ('9' * 1999)|int }}",
                "{% set x = 'a' * 9999999 %}{{ [x, x, x]|join }}",
                "{% for i in range(99999) %}{{ messages|tojson }}{{ [1, 2, 3, 4] * 999 }}{% endfor %}",
            })
    void hostileUsesOfTheLanguageEnd(String template) {
        hostileTemplatesEnd(template);
    }

    /** Not behind it, when separators have taken a gigabyte. */
    @Test
    void jsonEndsAtTheLimitOfItsLength() {
        assertThatThrownBy(() -> render("{{ range(99999)|list|tojson(separators=('a' * 9999, ':')) }}"))
                .hasMessageMatching("line 1: a text of 167[78]\\d{4} characters is over the limit of 16777216");
    }

    /** Keys that all have one hash, as is easily found for Java's strings. */
    @Test
    void keysOfOneHashAreFoundFast() {
        List<String> keys = List.of("");
        for (int i = 0; i < 15; i++) {
            keys = keys.stream()
                    .flatMap(key -> Stream.of(key + "Aa", key + "BB"))
                    .toList();
        }
        List<List<String>> lists = keys.stream().map(List::of).toList();
        long start = THREADS.getCurrentThreadCpuTime();
        assertThat(Template.compile(
                                "{{ keys|unique(true)|list|length }} {{ lists|groupby(0)|map('first')|unique(true)|list|length }}")
                        .render(
                                Map.of(
                                        "keys", JsonMapper.builder().build().valueToTree(keys),
                                        "lists", JsonMapper.builder().build().valueToTree(lists)),
                                CLOCK))
                .isEqualTo("32768 32768");
        assertThat(Duration.ofNanos(THREADS.getCurrentThreadCpuTime() - start)).isLessThan(BOUND);
    }

    /** Parts of Jinja2 that prompts do not need are refused, by name, where they are reached. */
    @Test
    void refusals() {
        assertThatThrownBy(() -> render("\n{{ lipsum() }}"))
                .hasMessage("line 2: lipsum() is random, and a prompt must not be");
        for (String filter : List.of("pprint", "random", "striptags", "urlize", "wordwrap")) {
            assertThatThrownBy(() -> render("{{ ''|" + filter + " }}"))
                    .hasMessage("line 1: the filter '" + filter + "' is not supported");
        }
        for (String statement : List.of("include", "import", "from", "extends")) {
            assertThatThrownBy(() -> render("{% " + statement + " 'x' as y %}"))
                    .hasMessage("line 1: {% " + statement + " %} needs other templates, and a chat template has none");
        }
        assertThatThrownBy(() -> render("{% autoescape true %}{% endautoescape %}"))
                .hasMessage("line 1: autoescape is not supported, prompts are no HTML");
    }

    @Test
    void deepSourcesAreRefused() {
        for (String template : List.of(
                "{{ " + "(".repeat(100_000) + "1" + ")".repeat(100_000) + " }}",
                "{{ " + "not ".repeat(100_000) + "1 }}",
                "{{ " + "-".repeat(100_000) + "1 }}",
                "{% if 1 %}".repeat(10_000) + "{% endif %}".repeat(10_000),
                "{{ 1" + " + 1".repeat(100_000) + " }}",
                "{% set " + "(".repeat(100_000) + "a",
                "{{ 1" + "_1".repeat(100_000) + " }}",
                "{{ 0x" + "_1".repeat(100_000) + " }}",
                "{{ '1" + "_1".repeat(100_000) + "'|int }}{{ '" + "1_".repeat(900) + "'|float + 1 }}{{ nope.x }}",
                "{{ 1." + "1_1".repeat(100_000) + " ~ nope.x }}",
                "{{ f(" + "*".repeat(100_000) + ") }}",
                "{{ a" + "[1".repeat(100_000) + " }}",
                "{% set " + "(a, ".repeat(100_000) + "b",
                "{% macro m() %}".repeat(10_000) + "{% endmacro %}".repeat(10_000),
                "{{ '" + "{".repeat(100_001) + "'.format(1) }}",
                "{{ '%(" + "(".repeat(100_000) + "' % {} }}",
                "{{ a" + "|string".repeat(100_000) + " }}")) {
            assertThatThrownBy(() -> render(template)).isInstanceOf(JinjaException.class);
        }
    }

    /** A conversation of a thousand long turns is nowhere near the limits. */
    @Test
    void longConversationsRender() {
        String text = "word ".repeat(800);
        List<Map<String, String>> messages = Stream.generate(() -> Map.of("role", "user", "content", text))
                .limit(1000)
                .toList();
        String rendered = Template.compile(
                        "{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '</think>'.split('</think>')[-1] }}{% endfor %}")
                .render(Map.of("messages", JsonMapper.builder().build().valueToTree(messages)), CLOCK);
        assertThat(rendered).hasSize(1000 * (6 + text.length() - 1));
    }

    private static String render(String template) {
        return Template.compile(template).render(Map.of(), CLOCK);
    }
}
