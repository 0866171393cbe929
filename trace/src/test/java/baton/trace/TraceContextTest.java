package baton.trace;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class TraceContextTest {
    private static final String TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
    private static final String PARENT = "00f067aa0ba902b7";

    private static TraceContext of(String... traceparents) {
        return TraceContext.of(List.of(traceparents), true);
    }

    @Test
    void aCallersTraceGoesOn() {
        TraceContext context = of("00-" + TRACE + "-" + PARENT + "-01");
        assertThat(context.traceId()).isEqualTo(TRACE);
        assertThat(context.parentId()).contains(PARENT);
        assertThat(context.sampled()).isTrue();
        assertThat(context.traceparent("00000000000000ab")).isEqualTo("00-" + TRACE + "-00000000000000ab-01");
    }

    @Test
    void onlyTheSampledFlagIsPassedOn() {
        assertThat(of("00-" + TRACE + "-" + PARENT + "-ff").traceparent(PARENT)).endsWith("-01");
        assertThat(of("00-" + TRACE + "-" + PARENT + "-fe").traceparent(PARENT)).endsWith("-00");
        assertThat(of("00-" + TRACE + "-" + PARENT + "-02").sampled()).isFalse();
    }

    @Test
    void aLaterVersionMayHaveMoreFields() {
        assertThat(of("01-" + TRACE + "-" + PARENT + "-01-more").traceId()).isEqualTo(TRACE);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "garbage",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
            })
    void aMalformedHeaderBeginsANewTrace(String header) {
        TraceContext context = of(header);
        assertThat(context.traceId()).matches("[0-9a-f]{32}").isNotEqualTo(TRACE);
        assertThat(context.parentId()).isEmpty();
        assertThat(context.sampled()).isTrue();
        assertThat(TraceContext.of(List.of(header), false).sampled()).isFalse();
    }

    @Test
    void severalHeadersAreAsGoodAsNone() {
        String header = "00-" + TRACE + "-" + PARENT + "-01";
        assertThat(of(header, header).parentId()).isEmpty();
        assertThat(of().parentId()).isEmpty();
    }
}
