package baton.cli;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.server.PrometheusMetrics;
import baton.trace.OtlpExporter;
import baton.trace.OtlpSettings;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Clock;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/** The option {@code --otlp-traces-endpoint}. */
final class Spans {
    private static final String FIELD = "otlp traces endpoint";
    private static final String SERVICE_NAME = "OTEL_SERVICE_NAME";

    private Spans() {}

    /** @throws ConfigException if it is given and is no address of a collector */
    static void requireEndpoint(@Nullable String endpoint) {
        if (endpoint != null) {
            OtlpSettings _ = OtlpSettings.of(FIELD, endpoint, "");
        }
    }

    /**
     * Starts an exporter if an endpoint is given.
     *
     * @param service {@code service.name}, unless the environment variable OTEL_SERVICE_NAME is set
     */
    static Optional<OtlpExporter> exporter(@Nullable String endpoint, String service, String host, int port) {
        if (endpoint == null) {
            return Optional.empty();
        }
        String name = Optional.ofNullable(System.getenv(SERVICE_NAME))
                .filter(given -> !given.isBlank())
                .orElse(service);
        return Optional.of(new OtlpExporter(
                OtlpSettings.of(FIELD, endpoint, name),
                // A free port is not known yet; the process is.
                hostName(host) + ":"
                        + (port == 0 ? "pid" + ProcessHandle.current().pid() : port),
                Ticker.system(),
                Clock.systemUTC()));
    }

    /** Adds the numbers of spans that the exporter has sent and dropped. */
    static void addTo(PrometheusMetrics metrics, OtlpExporter exporter) {
        metrics.addCounters(
                "baton:trace_spans",
                "Spans of requests, by whether a collector has them",
                "result",
                new TreeMap<String, LongSupplier>(
                        Map.of("exported", exporter::exported, "dropped", exporter::dropped)));
    }

    private static String hostName(String host) {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException _) {
            return host;
        }
    }
}
