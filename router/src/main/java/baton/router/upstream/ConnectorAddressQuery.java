package baton.router.upstream;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.AddressQueryResult;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks a prefill instance at {@code /kv_transfer_params} for its {@link ConnectorAddress}, so that both legs of the first request
 * can already be sent at once. The query is sent when the instance has come up and then with each health probe: another engine may
 * have replaced it unnoticed, and a bad answer may be followed by a good one. An instance that answers that it has no connector
 * address is not asked again until it has been down. No request depends on the query: the address of a server without that path, or
 * with bad answers, is taken from its first answer to a request. Confined to one event loop.
 */
public final class ConnectorAddressQuery {
    public static final String PATH = "/kv_transfer_params";

    /** The field in which Baton's instances name their connector; {@code null} for none. */
    static final String CONNECTOR = "kv_connector";

    private static final Logger log = LoggerFactory.getLogger(ConnectorAddressQuery.class);
    private static final Duration MAX_DEADLINE = Duration.ofSeconds(2);
    private static final int MAX_ANSWER = 16 << 10;
    private static final int MAX_QUOTED = 300;

    private final UpstreamClient upstream;
    private final Instance instance;
    private final Duration deadline;
    private final MultiMap headers = MultiMap.caseInsensitiveMultiMap();
    private final RouterMetrics metrics;
    /** The instance has answered that it has no connector address, and has not been down since. */
    private boolean hasNoAddress;
    /** A bad answer is logged once, until a good one or until the instance comes up again. */
    private boolean failureLogged;

    /**
     * @param connect the query's deadline, if not longer than two seconds
     * @param apiKey the instance's, if it needs one
     */
    ConnectorAddressQuery(
            UpstreamClient upstream,
            Instance instance,
            Duration connect,
            Optional<String> apiKey,
            RouterMetrics metrics) {
        this.upstream = upstream;
        this.instance = instance;
        this.deadline = connect.compareTo(MAX_DEADLINE) < 0 ? connect : MAX_DEADLINE;
        this.metrics = metrics;
        apiKey.ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
    }

    /** To be called when the instance was down until now. */
    void cameUp() {
        hasNoAddress = false;
        failureLogged = false;
    }

    boolean isDue() {
        return !hasNoAddress;
    }

    /** Asks; {@code done} runs unless the leg is aborted. */
    Leg ask(Runnable done) {
        return new Question(HttpMethod.GET, PATH, headers, Buffer.buffer(), deadline, MAX_ANSWER)
                .ask(
                        upstream,
                        instance,
                        Optional.empty(),
                        answer -> {
                            try {
                                answered(answer);
                            } finally {
                                done.run();
                            }
                        },
                        failure -> {
                            failed(failure.reason());
                            done.run();
                        });
    }

    private void learnt(ConnectorAddress address) {
        failureLogged = false;
        instance.learnConnectorAddress(address);
        metrics.count(RouterMetric.ASKED_AHEAD, AddressQueryResult.TOLD);
    }

    private void noAddress() {
        hasNoAddress = true;
        // A known address is that of the server that this one has replaced.
        instance.forgetConnectorAddress();
        metrics.count(RouterMetric.ASKED_AHEAD, AddressQueryResult.UNTOLD);
    }

    private void failed(String reason) {
        metrics.count(RouterMetric.ASKED_AHEAD, AddressQueryResult.FAILED);
        if (!failureLogged) {
            failureLogged = true;
            log.warn(
                    "{}: GET {}: {}; the query is repeated with each probe, and the address is also taken from an answer to a request",
                    instance,
                    PATH,
                    reason);
        }
    }

    private void answered(Question.Answer answer) {
        switch (answer.status()) {
            case 200 -> read(answer.body());
            case 404, 405, 501 -> {
                instance.forgetConnector();
                noAddress();
            }
            case 401 -> failed("HTTP 401, it needs the router's API key");
            default -> failed("HTTP " + answer.status());
        }
    }

    private void read(Buffer text) {
        try {
            JsonObjectText answer = JsonObjectText.parse("the answer", text.getBytes());
            boolean tells = answer.has(CONNECTOR);
            if (tells) {
                instance.learnConnector(new InstanceConnector(
                        answer.value(CONNECTOR)
                                .map(ConnectorAddressQuery::unquoted)
                                .orElse(""),
                        true));
            } else {
                instance.forgetConnector();
            }
            Optional<byte[]> params = answer.value(ConnectorAddress.FIELD);
            if (params.isEmpty()) {
                noAddress();
                // Another engine may take its place.
                hasNoAddress = !tells;
                return;
            }
            ConnectorAddress.parse(params.get())
                    .ifPresentOrElse(
                            this::learnt,
                            () -> failed(
                                    ConnectorAddress.FIELD
                                            + " must have remote_engine_id, and remote_host and remote_port, or remote_bootstrap_addr, of a connector"));
        } catch (ConfigException e) {
            String reason = String.valueOf(e.getMessage());
            failed(reason.substring(0, Math.min(reason.length(), MAX_QUOTED)));
        }
    }

    /** Names of connectors have no escapes. */
    private static String unquoted(byte[] json) {
        String text = new String(json, StandardCharsets.UTF_8);
        return text.length() > 1 && text.startsWith("\"") ? text.substring(1, text.length() - 1) : "";
    }
}
