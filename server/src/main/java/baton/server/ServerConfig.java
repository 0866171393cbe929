package baton.server;

import baton.engine.GenerationRequest;
import baton.engine.SamplingParamsBuilder;
import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.KvEventsConfig;
import baton.kv.Require;
import baton.kv.ServerTls;
import baton.kv.WebGuard;
import baton.trace.OtlpExporter;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Settings of an {@link ApiServer}.
 *
 * @param host address to listen on
 * @param port port to listen on; 0 takes a free one
 * @param grpcPort port for gRPC, at the same address; 0 takes a free one; empty for no gRPC
 * @param servedModelNames names of the model in requests; the first is used in answers
 * @param apiKey bearer token for every path except health, metrics and version; empty for none
 * @param maxBodyBytes largest request body
 * @param maxPendingBytes output that a client has not read yet; a request with more is aborted
 * @param bodyTimeout how long a client may take to send a body, and to read a list of tokens
 * @param maxPreparingBytes memory of all requests until the engine has them: bodies, their JSON, prompts; and of lists of tokens
 *     until they are sent
 * @param prepareTimeout how long a complete body may take to become tokens, time in the queue included
 * @param idleTimeout how long a connection may have no request, or an incomplete request line or header
 * @param responseRole role of chat answers
 * @param version the answer of {@code /version}
 * @param toolCallParser the format in which the model calls tools, by the name of vLLM's parser, or auto; empty if calls are not looked for
 * @param reasoningParser the format in which the model marks its reasoning, by the name of vLLM's parser; empty if it is not looked for
 * @param trustRequestChatTemplate whether requests may have a {@code chat_template}
 * @param kvPromptTokenIds whether {@code kv_transfer_params.prompt_token_ids} replaces the prompt
 * @param accessLog takes a line for each ended request, on the event loop
 * @param unloggedPaths paths without a line for successful requests, such as polled ones
 * @param samplingDefaults applied to a request's parameters before its own fields are, e.g. to put the model's
 *     generation_config.json in force; a {@code maxTokens} set here counts for chat only
 * @param cacheHitThreshold of requests that have none: the share of a prompt, 0 to 1, that caches must hold
 * @param kvEventSources where KV events are published, by data-parallel rank: the answer of {@code /kv_event_sources}
 * @param warmUp how long the server may compute prompts of its own before it is ready, see {@link ApiServer#warmUp}; empty for no
 *     warm-up
 * @param tls of the port; empty for plain HTTP
 * @param spans takes the spans of requests; not closed by the server
 * @param allowedOrigins origins of web pages that may use the server, besides the server's: see {@link WebGuard#of}
 */
@GeneratedBuilder
public record ServerConfig(
        String host,
        int port,
        OptionalInt grpcPort,
        List<String> servedModelNames,
        Optional<String> apiKey,
        int maxBodyBytes,
        int maxPendingBytes,
        Duration bodyTimeout,
        long maxPreparingBytes,
        Duration prepareTimeout,
        Duration idleTimeout,
        String responseRole,
        String version,
        Optional<String> toolCallParser,
        Optional<String> reasoningParser,
        boolean trustRequestChatTemplate,
        boolean kvPromptTokenIds,
        Consumer<String> accessLog,
        Set<String> unloggedPaths,
        Consumer<SamplingParamsBuilder> samplingDefaults,
        double cacheHitThreshold,
        Map<Integer, KvEventsConfig> kvEventSources,
        Optional<Duration> warmUp,
        Optional<ServerTls> tls,
        Optional<OtlpExporter> spans,
        List<String> allowedOrigins) {

    /** The default access log. */
    private static final Logger ACCESS_LOG = LoggerFactory.getLogger("access");

    /** Paths polled by load balancers and Prometheus. */
    public static final Set<String> POLLED = Set.of("/health", "/ping", "/metrics", "/load", "/kv_transfer_params");

    public ServerConfig {
        servedModelNames = List.copyOf(servedModelNames);
        if (servedModelNames.isEmpty() || servedModelNames.stream().anyMatch(String::isBlank)) {
            throw new ConfigException("served_model_name", "is " + servedModelNames + ", must be one name or more");
        }
        Require.port("port", port);
        Require.port("grpc_port", grpcPort.orElse(0));
        if (apiKey.isPresent() && apiKey.get().isBlank()) {
            throw new ConfigException("api_key", "is blank; leave it out to serve every client");
        }
        Require.positive("max_body_bytes", maxBodyBytes);
        Require.positive("max_pending_bytes", maxPendingBytes);
        Require.positive("body_timeout", bodyTimeout);
        Require.positive("max_preparing_bytes", maxPreparingBytes);
        Require.positive("prepare_timeout", prepareTimeout);
        Require.positive("idle_timeout", idleTimeout);
        GenerationRequest.requireShare(cacheHitThreshold);
        unloggedPaths = Set.copyOf(unloggedPaths);
        kvEventSources = Map.copyOf(kvEventSources);
        WebGuard _ = WebGuard.of(host, tls.isPresent(), allowedOrigins);
    }

    /** The server's address at a port. */
    String url(int actualPort) {
        return (tls.isPresent() ? "https://" : "http://") + host + ":" + actualPort;
    }

    /** The default for a heap of so many bytes: the rest is for the engine and for memory that is not estimated. */
    static long preparingBytes(long heap) {
        return Math.min(512 << 20, heap / 4);
    }

    /** Which web pages may use the server. */
    WebGuard webGuard() {
        return WebGuard.of(host, tls.isPresent(), allowedOrigins);
    }

    /** The defaults: vLLM's port, this host only, no key. */
    public static ServerConfigBuilder of(String servedModelName) {
        return ServerConfigBuilder.builder()
                .host("127.0.0.1")
                .port(8000)
                .servedModelNames(List.of(servedModelName))
                .maxBodyBytes(32 << 20)
                .maxPendingBytes(1 << 20)
                .bodyTimeout(Duration.ofSeconds(60))
                .maxPreparingBytes(preparingBytes(Runtime.getRuntime().maxMemory()))
                .prepareTimeout(Duration.ofSeconds(30))
                .idleTimeout(Duration.ofSeconds(75))
                .responseRole("assistant")
                .version("unknown")
                .kvPromptTokenIds(true)
                .accessLog(ACCESS_LOG::info)
                .unloggedPaths(POLLED)
                .samplingDefaults(builder -> {})
                .kvEventSources(Map.of())
                .allowedOrigins(List.of());
    }
}
