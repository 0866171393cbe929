package baton.bench.frame;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

class LayoutTest {
    private static final Layout LAYOUT = new Layout()
            .head("of {model}")
            .line("rate {rate|%.2f|1e-9} GB/s")
            .table(
                    "times in ms",
                    "sizes",
                    Column.of("tokens", "{tokens|%,d}"),
                    Column.of("median (best)", "{put/median|%.1f|1e3} ({put/best|%.1f|1e3})"))
            .note("sizes", "measured in turns")
            .leftOut();

    private static ObjectNode figures(String json) {
        return (ObjectNode) JsonMapper.builder().build().readTree(json);
    }

    @Test
    void figuresAreShownInTheirUnitsInColumnsOfEqualWidth() {
        assertThat(LAYOUT.text(figures("""
                {"model": "m", "rate": 1.5e9,
                 "sizes": [{"tokens": 1024, "put": {"median": 0.5, "best": 0.25}}, {"tokens": 16, "put": {"median": 0.002, "best": 0.001}}],
                 "left_out": ["8192 tokens: no room"]}
                """))).isEqualTo("""
                of m
                rate 1.50 GB/s

                times in ms
                tokens  median (best)
                1,024   500.0 (250.0)
                16          2.0 (1.0)
                measured in turns
                left out: 8192 tokens: no room
                """);
    }

    @Test
    void missingFiguresAreLeftOutAndWithoutAnyNothingIsShown() {
        assertThat(LAYOUT.text(figures("{\"model\": \"m\", \"sizes\": [{\"tokens\": 16}]}")))
                .isEqualTo("of m\n\ntimes in ms\ntokens  median (best)\n16\nmeasured in turns\n");
        assertThat(LAYOUT.text(figures("{\"model\": \"m\", \"sizes\": []}"))).isEmpty();
    }

    @Test
    void aTableOfMarkdownEscapesItsCells() {
        Table table = Table.of(
                List.of(Column.of("name", "{name}")),
                figures("{\"rows\": [{\"name\": \"a|b <c>\\n d\"}]}")
                        .path("rows")
                        .valueStream());
        assertThat(table.markdown()).isEqualTo("| name |\n| --- |\n| a\\|b &lt;c> d |\n");
    }
}
