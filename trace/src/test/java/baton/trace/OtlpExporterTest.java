package baton.trace;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.FreePorts;
import baton.kv.Ticker;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.time.Clock;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(300)
class OtlpExporterTest {
    private static final String TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";

    @AutoClose
    private final StandInCollector collector = new StandInCollector();

    private static OtlpSettings settings(URI endpoint, int queued, int batch) {
        return new OtlpSettings(endpoint, "baton-test", queued, batch, Duration.ZERO, Duration.ofSeconds(60));
    }

    private static OtlpExporter exporter(OtlpSettings settings) {
        return new OtlpExporter(settings, "here:1", Ticker.system(), Clock.systemUTC());
    }

    private static Span span(OtlpExporter exporter, String name) {
        long now = exporter.epochNanos();
        return new Span(
                TRACE,
                TraceContext.newSpanId(),
                Optional.of("00f067aa0ba902b7"),
                name,
                Span.Kind.CLIENT,
                now - 1000,
                now,
                new Span.Attributes()
                        .put("text", "a \"text\"")
                        .put("number", Long.MAX_VALUE)
                        .put("real", 0.5)
                        .put("bool", true)
                        .toMap(),
                List.of(new Span.Event(now, "half-way")),
                Optional.of("went wrong"));
    }

    @Test
    void aSpanArrivesAsItIs() throws Exception {
        try (OtlpExporter exporter = exporter(settings(collector.endpoint(), 10, 10))) {
            Span sent = span(exporter, "an operation");
            exporter.export(sent);
            StandInCollector.Received came = collector.await(1).getFirst();
            assertThat(came.service()).isEqualTo("baton-test");
            assertThat(came.trace()).isEqualTo(TRACE);
            assertThat(came.id()).isEqualTo(sent.id());
            assertThat(came.parent()).isEqualTo("00f067aa0ba902b7");
            assertThat(came.name()).isEqualTo("an operation");
            assertThat(came.kind()).isEqualTo(3);
            assertThat(came.end() - came.start()).isEqualTo(1000);
            assertThat(came.attributes())
                    .containsEntry("text", "a \"text\"")
                    .containsEntry("number", Long.toString(Long.MAX_VALUE))
                    .containsEntry("real", "0.5")
                    .containsEntry("bool", "true");
            assertThat(came.events()).containsExactly("half-way");
            assertThat(came.status()).isEqualTo(2);
            assertThat(came.message()).isEqualTo("went wrong");
        }
    }

    @Test
    void waitingSpansAreSentInBatchesWhenTheExporterIsClosed() throws Exception {
        OtlpExporter exporter = exporter(new OtlpSettings(
                collector.endpoint(), "baton-test", 1000, 100, Duration.ofMinutes(5), Duration.ofSeconds(60)));
        IntStream.range(0, 250).forEach(i -> exporter.export(span(exporter, "span " + i)));
        exporter.close();
        assertThat(collector.spans()).hasSize(250);
        assertThat(collector.batches()).allSatisfy(batch -> assertThat(batch).isBetween(1, 100));
        assertThat(exporter.exported()).isEqualTo(250);
        assertThat(exporter.dropped()).isZero();
        exporter.export(span(exporter, "too late"));
        assertThat(exporter.dropped()).isEqualTo(1);
    }

    /** The collector's port accepts connections and answers nothing. */
    @Test
    void aFullQueueDropsAndCounts() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
            OtlpExporter exporter = exporter(new OtlpSettings(
                    URI.create("http://127.0.0.1:" + silent.getLocalPort() + "/v1/traces"),
                    "baton-test",
                    5,
                    2,
                    Duration.ZERO,
                    Duration.ofMillis(300)));
            IntStream.range(0, 100).forEach(i -> exporter.export(span(exporter, "span " + i)));
            assertThat(exporter.dropped()).isGreaterThanOrEqualTo(90);
            exporter.close();
            assertThat(exporter.dropped()).isEqualTo(100);
            assertThat(exporter.exported()).isZero();
        }
    }

    @Test
    void aBatchIsSentAgainWhenTheCollectorIsOverloaded() throws Exception {
        collector.answer(new StandInCollector.Answer(503, "later"));
        try (OtlpExporter exporter = exporter(settings(collector.endpoint(), 10, 10))) {
            exporter.export(span(exporter, "sent twice"));
            awaitBatches(1);
            collector.answer(StandInCollector.Answer.TAKEN);
            collector.await(1);
            exporter.close();
            assertThat(exporter.exported()).isEqualTo(1);
            assertThat(exporter.dropped()).isZero();
        }
    }

    @Test
    void aBatchThatIsRefusedIsDroppedAndTheNextIsSent() throws Exception {
        collector.answer(new StandInCollector.Answer(400, "no"));
        try (OtlpExporter exporter = exporter(settings(collector.endpoint(), 10, 10))) {
            exporter.export(span(exporter, "refused"));
            awaitBatches(1);
            collector.answer(new StandInCollector.Answer(
                    200, "{\"partialSuccess\":{\"rejectedSpans\":\"1\",\"errorMessage\":\"too old\"}}"));
            exporter.export(span(exporter, "rejected"));
            awaitBatches(2);
            collector.answer(StandInCollector.Answer.TAKEN);
            exporter.export(span(exporter, "taken"));
            collector.await("the last span", all -> all.getLast().name().equals("taken"));
            exporter.close();
            assertThat(exporter.dropped()).isEqualTo(2);
            assertThat(exporter.exported()).isEqualTo(1);
        }
    }

    private void awaitBatches(int count) throws InterruptedException {
        synchronized (collector) {
            Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
            while (collector.batches().size() < count) {
                assertThat(deadline.awaitNotify(collector)).isTrue();
            }
        }
    }

    @Test
    void aCollectorThatIsGoneHoldsNothingUp() throws IOException {
        int port = FreePorts.inARow(1);
        OtlpExporter exporter = exporter(settings(URI.create("http://127.0.0.1:" + port + "/v1/traces"), 10, 10));
        exporter.export(span(exporter, "lost"));
        exporter.close();
        assertThat(exporter.dropped()).isEqualTo(1);
    }

    @Test
    void anEndpointWithoutPathGetsTheUsualOne() {
        assertThat(OtlpSettings.of("endpoint", "http://collector:4318", "s").endpoint())
                .isEqualTo(URI.create("http://collector:4318/v1/traces"));
        assertThat(OtlpSettings.of("endpoint", "https://collector/otlp", "s").endpoint())
                .isEqualTo(URI.create("https://collector/otlp"));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {"collector:4317", "grpc://collector:4317", "http://", "http://a b", "", "http://u:p@host/x"})
    void anEndpointThatCannotBeUsedIsRefused(String endpoint) {
        assertThatThrownBy(() -> OtlpSettings.of("otlp traces endpoint", endpoint, "s"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("otlp traces endpoint")
                .hasMessageContaining("'" + endpoint + "'")
                .hasMessageContaining("/v1/traces");
    }
}
