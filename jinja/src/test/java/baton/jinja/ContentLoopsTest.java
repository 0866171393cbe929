package baton.jinja;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Each answer is vLLM 0.32's for the same template. */
class ContentLoopsTest {
    private static boolean readsParts(String template) {
        return Template.compile(template).readsContentParts();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
                "{% for m in messages[1:] | list %}{% for c in m.content[1:] | list if c %}{% endfor %}{% endfor %}",
                "{% set l = messages %}{% set k = l[1:] %}{% for m in k %}{% for c in m.content %}{% endfor %}{% endfor %}",
                "{% for m in messages %}{% for c in m.content is string %}{% endfor %}{% endfor %}",
                "{% for content in [] %}{% for c in content %}{% endfor %}{% endfor %}",
                "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
                "{% macro f(y, x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{% call f(x=m.content) %}{% endcall %}{% endfor %}",
                "{% macro f(x) %}{% macro g(y) %}{% for c in x %}{% endfor %}{% endmacro %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
                "{% set x %}{% filter upper %}{% generation %}{% with a = 1 %}{% if a %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}{% endif %}{% endwith %}{% endgeneration %}{% endfilter %}{% endset %}",
            })
    void templatesThatReadParts(String template) {
        assertThat(readsParts(template)).isTrue();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{% for m in messages %}{{ m.content }}{% endfor %}",
                "{% for c in messages[0].content %}{% endfor %}",
                "{% for m in messages %}{% for c in m.content is not string %}{% endfor %}{% endfor %}",
                "{% for m in messages %}{% for c in m.get('content') %}{% endfor %}{% endfor %}",
                "{% for m in messages %}{% for c in m.parts %}{% endfor %}{% endfor %}",
                "{% for m in messages %}{% set text = m.content %}{% for c in text %}{% endfor %}{% endfor %}",
                "{% for m in others %}{% for c in m.content %}{% endfor %}{% endfor %}",
                "{% with l = messages %}{% for m in l %}{% for c in m.content %}{% endfor %}{% endfor %}{% endwith %}",
                "{% set ns.l = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
                "{% for a, b in messages %}{% endfor %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
                "{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% for c in m.content %}{% endfor %}{% endfor %}",
                "{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.name) }}{% endfor %}",
                "{% macro f(x) %}{% for c in x | list %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            })
    void templatesThatReadStrings(String template) {
        assertThat(readsParts(template)).isFalse();
    }
}
