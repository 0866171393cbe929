package baton.bench.serve;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.bench.serve.Statistics.Percentile;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.LocalDateTime;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import org.assertj.core.data.Offset;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;

/** The expected figures are those of {@code vllm.benchmarks.serve.calculate_metrics} of vLLM 0.32 for the same requests. */
class MetricsTest {
    private static final Offset<Double> CLOSE = within(1e-9);
    private static final List<Double> RANKS = List.of(50.0, 90.0, 99.9);

    private final Metrics metrics = new Metrics(
            List.of(
                    exchange(0, 100, List.of(20, 30, 20), 4, 11),
                    exchange(500, 250, List.of(50, 10), 3, 7),
                    exchange(1250, 50, List.of(), 1, 5),
                    exchange(1500, 400, List.of(200, 300, 100, 400, 50), 6, 13),
                    StreamedAnswer.failed(millis(2000), millis(2000), millis(2000), 9, "HTTP 500: boom")),
            4);

    private static Exchange exchange(int sent, int first, List<Integer> between, int tokens, int prompt) {
        // Each was due 5 ms before, and arrived 1 ms before.
        return new Exchange(
                millis(sent - 5),
                millis(sent - 1),
                millis(sent),
                millis(first),
                between.stream().mapToLong(MetricsTest::millis).toArray(),
                prompt,
                tokens,
                "x",
                Optional.empty());
    }

    private static long millis(int value) {
        return value * 1_000_000L;
    }

    @Test
    void figuresAreThoseOfVllm() {
        assertThat(metrics.completed()).isEqualTo(4);
        assertThat(metrics.failed()).isEqualTo(1);
        assertThat(metrics.inputTokens()).isEqualTo(36);
        assertThat(metrics.outputTokens()).isEqualTo(14);
        assertThat(metrics.requestsPerSecond()).isEqualTo(1);
        assertThat(metrics.goodput(Objectives.parse(List.of("ttft:300", "tpot:100"))))
                .isEqualTo(0.75);
        assertThat(metrics.goodput(Objectives.NONE)).isZero();
        assertThat(metrics.outputPerSecond()).isEqualTo(3.5);
        assertThat(metrics.tokensPerSecond()).isEqualTo(12.5);
        figures(metrics.ttft(), 200, 175, 136.93063937629154, 175, 355, 399.55);
        figures(metrics.tpot(), 87.77777777777779, 30, 86.46700648152766, 30, 174, 209.64);
        figures(metrics.itl(), 118, 50, 129.44496900227526, 50, 310, 399.1);
        figures(metrics.e2el(), 495, 240, 558.994633247941, 240, 1108, 1446.58);
        assertThat(metrics.bySecond().mostTokens()).isEqualTo(7);
        assertThat(metrics.bySecond().mostRequests()).isEqualTo(2);
    }

    private static void figures(double[] seconds, double mean, double median, double std, double... percentiles) {
        Statistics figures =
                Statistics.of(Arrays.stream(seconds).map(each -> each * 1e3).toArray(), RANKS);
        assertThat(figures.mean()).isCloseTo(mean, CLOSE);
        assertThat(figures.median()).isCloseTo(median, CLOSE);
        assertThat(figures.std()).isCloseTo(std, CLOSE);
        assertThat(figures.percentiles().stream().mapToDouble(Percentile::value).toArray())
                .containsExactly(percentiles, within(1e-9));
    }

    @Test
    void noAnswersAreFiguresOfZero() {
        assertThat(Statistics.of(new double[0], RANKS).percentile(99.9)).isZero();
        Metrics none = new Metrics(List.of(StreamedAnswer.failed(0, 0, 0, 1, "no")), 1);
        assertThat(none.bySecond().mostTokens()).isZero();
        assertThat(none.goodput(Objectives.parse(List.of("ttft:1")))).isZero();
    }

    @Test
    void lateRequestsCountFromTheirDueTime() {
        assertThat(metrics.late().getMaxValue()).isEqualTo(metrics.late().highestEquivalentValue(5000));
        assertThat(metrics.ttftFromDue().getMean()).isCloseTo(205_000, within(300.0));
        assertThat(metrics.e2elFromDue().getMean()).isCloseTo(500_000, within(1000.0));
    }

    @Test
    void theReportHasVllmsLines() {
        StringWriter text = new StringWriter();
        report(OptionalInt.of(3), 2.5).print(new PrintWriter(text));
        assertThat(text.toString())
                .startsWith("""
                        Failed requests during benchmark run detected (capping to 10):
                        Error 0: HTTP 500: boom
                        ============ Serving Benchmark Result ============
                        Successful requests:                     4        \s
                        Failed requests:                         1        \s
                        Maximum request concurrency:             3        \s
                        Request rate configured (RPS):           2.50     \s
                        Benchmark duration (s):                  4.00     \s
                        Total input tokens:                      36       \s
                        Total generated tokens:                  14       \s
                        Request throughput (req/s):              1.00     \s
                        Request goodput (req/s):                 0.75     \s
                        Output token throughput (tok/s):         3.50     \s
                        Peak output token throughput (tok/s):    7.00     \s
                        Peak concurrent requests:                2.00     \s
                        Total token throughput (tok/s):          12.50    \s
                        ---------------Time to First Token----------------
                        Mean TTFT (ms):                          200.00   \s
                        Median TTFT (ms):                        175.00   \s
                        P50 TTFT (ms):                           175.00   \s
                        P99.9 TTFT (ms):                         399.55   \s
                        """)
                .contains("-----Time per Output Token (excl. 1st token)------\n")
                .contains("---------------Inter-token Latency----------------\n")
                .contains("P99.9 ITL (ms):                          399.10    \n")
                .contains("Mean Client Queue Time (ms):             1.00      \n")
                .contains("Mean E2EL incl. Client Queue (ms):       496.00    \n")
                .contains("Sent late:       mean 4.00");
    }

    @Test
    void anInfiniteRateHasNoScheduleToMeasureFrom() {
        StringWriter text = new StringWriter();
        ServeReport report = report(OptionalInt.empty(), Double.POSITIVE_INFINITY);
        report.print(new PrintWriter(text));
        assertThat(text.toString()).endsWith("=".repeat(50) + "\n").doesNotContain("RPS", "Queue");
        assertThat(report.toJson(false).path("request_rate").asString()).isEqualTo("inf");
        assertThat(report.toJson(false).has("from_due")).isFalse();
    }

    @Test
    void theJsonHasVllmsFields() {
        JsonNode plain = report(OptionalInt.of(3), 2.5).toJson(false);
        assertThat(plain.path("p99.9_itl_ms").asDouble()).isCloseTo(399.1, within(1e-6));
        assertThat(plain.path("date").asString()).isEqualTo("20260102-030405");
        assertThat(plain.path("hall").asString()).isEqualTo("7");
        assertThat(plain.path("label").isNull()).isTrue();
        assertThat(plain.path("from_due").path("sent_late_ms").path("max").asDouble())
                .isCloseTo(5, within(0.01));
        assertThat(plain.has("ttfts")).isFalse();
        assertThat(plain.path("latencies")).hasSize(5);
        JsonNode detailed = report(OptionalInt.of(3), 2.5).toJson(true);
        assertThat(detailed.path("itls").path(3)).hasSize(5);
        assertThat(detailed.path("errors").path(4).asString()).isEqualTo("HTTP 500: boom");
        assertThat(detailed.path("output_lens").path(4).asInt()).isZero();
    }

    @Test
    void aPageHasEveryPlotAndNothingFromElsewhere() {
        String page = ServePage.html(report(OptionalInt.empty(), 2.5));
        assertThat(page).contains("Time to first token", "from due", "prefers-color-scheme: dark", "</html>");
        assertThat(page.split("<svg ", -1)).hasSize(7);
        assertThat(page).doesNotContain("<script", "NaN", "Infinity", "src=", "href=");
    }

    @Test
    void aReportsFileIsNamedAsVllmNamesIt() {
        assertThat(report(OptionalInt.of(3), 2.5).fileName())
                .isEqualTo("openai-2.5qps-concurrency3-model-20260102-030405.json");
        assertThat(report(OptionalInt.empty(), Double.POSITIVE_INFINITY).fileName())
                .isEqualTo("openai-infqps-model-20260102-030405.json");
    }

    private ServeReport report(OptionalInt most, double rate) {
        return new ServeReport(
                new ServeReport.About(
                        LocalDateTime.of(2026, 1, 2, 3, 4, 5),
                        Backend.OPENAI,
                        Optional.empty(),
                        "org/model",
                        "org/model",
                        Map.of("hall", "7")),
                new ServeReport.Traffic(new Arrivals(rate, 1, Optional.empty()), most),
                new ServeReport.Selection(
                        List.of("ttft", "tpot", "itl", "client_queue_time", "e2el_including_client_queue"),
                        List.of(50.0, 99.9),
                        Objectives.parse(List.of("ttft:300", "tpot:100"))),
                metrics);
    }
}
