package baton.cli;

import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.RequestBody;
import baton.kv.ConfigException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;

/** The destination and content of the requests of {@code baton bench serve}. */
final class ServeRequestOptions {
    @Option(
            names = "--backend",
            defaultValue = "openai",
            paramLabel = "NAME",
            description = "openai or vllm (completions), or openai-chat (default: ${DEFAULT-VALUE}).")
    private String backend;

    @Option(names = "--base-url", paramLabel = "URL", description = "The server, in place of --host and --port.")
    private @Nullable String baseUrl;

    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "The server's host (default: ${DEFAULT-VALUE}).")
    private String host;

    @Option(names = "--port", defaultValue = "8000", description = "The server's port (default: ${DEFAULT-VALUE}).")
    private int port;

    @Option(
            names = "--endpoint",
            paramLabel = "PATH",
            description = "Path of requests (default: /v1/completions, of openai-chat /v1/chat/completions).")
    private @Nullable String path;

    @Option(names = "--insecure", description = "Accept any certificate.")
    private boolean insecure;

    @Option(
            names = "--header",
            arity = "0..*",
            paramLabel = "KEY=VALUE",
            description = "Headers of each request. OPENAI_API_KEY is sent as a bearer token unless they have one.")
    private List<String> headers = List.of();

    @Option(names = "--ignore-eos", description = "Have answers go on to their full length; random does in any case.")
    private boolean ignoreEos;

    @Option(names = "--logprobs", paramLabel = "N", description = "Log probabilities of each token to ask for.")
    private @Nullable Integer logprobs;

    @Option(names = "--temperature", description = "Sampling; the server's default if it is not given.")
    private @Nullable Double temperature;

    @Option(names = "--top-p", description = "Likewise.")
    private @Nullable Double topP;

    @Option(names = "--top-k", description = "Likewise.")
    private @Nullable Integer topK;

    @Option(names = "--min-p", description = "Likewise.")
    private @Nullable Double minP;

    @Option(names = "--frequency-penalty", description = "Likewise.")
    private @Nullable Double frequencyPenalty;

    @Option(names = "--presence-penalty", description = "Likewise.")
    private @Nullable Double presencePenalty;

    @Option(names = "--repetition-penalty", description = "Likewise.")
    private @Nullable Double repetitionPenalty;

    @Option(names = "--extra-body", paramLabel = "JSON", description = "More fields of each request.")
    private @Nullable String extraBody;

    Endpoint endpoint() {
        Backend spoken = Backend.parse("backend", backend);
        String named = host.contains(":") && !host.startsWith("[") ? "[" + host + "]" : host;
        Map<String, String> sent = new LinkedHashMap<>();
        Optional.ofNullable(System.getenv("OPENAI_API_KEY"))
                .filter(key -> !key.isEmpty())
                .ifPresent(key -> sent.put("Authorization", "Bearer " + key));
        pairs("header", headers).forEach((key, value) -> {
            sent.keySet().removeIf(each -> each.equalsIgnoreCase(key));
            sent.put(key, value);
        });
        return new Endpoint(
                spoken,
                baseUrl == null ? "http://" + named + ":" + port : baseUrl,
                path == null ? spoken.path() : path,
                sent,
                insecure);
    }

    /** @param full whether the data set wants answers of full length */
    RequestBody body(String model, boolean full) {
        Map<String, JsonNode> extra = new LinkedHashMap<>();
        put(extra, "temperature", temperature);
        put(extra, "top_p", topP);
        if (topK != null) {
            extra.put("top_k", JsonNodeFactory.instance.numberNode(topK));
        }
        put(extra, "min_p", minP);
        put(extra, "frequency_penalty", frequencyPenalty);
        put(extra, "presence_penalty", presencePenalty);
        put(extra, "repetition_penalty", repetitionPenalty);
        if (extraBody != null) {
            object("extra-body", extraBody).properties().forEach(each -> extra.put(each.getKey(), each.getValue()));
        }
        return new RequestBody(
                Backend.parse("backend", backend),
                model,
                ignoreEos || full,
                logprobs == null ? OptionalInt.empty() : OptionalInt.of(logprobs),
                extra);
    }

    boolean hasTemperature() {
        return temperature != null
                || (extraBody != null && object("extra-body", extraBody).has("temperature"));
    }

    private static void put(Map<String, JsonNode> extra, String name, @Nullable Double value) {
        if (value != null) {
            extra.put(name, JsonNodeFactory.instance.numberNode(value));
        }
    }

    private static JsonNode object(String field, String json) {
        try {
            JsonNode node = JsonMapper.builder().build().readTree(json);
            if (node.isObject()) {
                return node;
            }
        } catch (JacksonException e) {
            // Reported below.
        }
        throw new ConfigException(field, "is '" + json + "', must be a JSON object");
    }

    /** Pairs such as {@code key=value}, in order. */
    static Map<String, String> pairs(String field, List<String> pairs) {
        Map<String, String> map = new LinkedHashMap<>();
        for (String pair : pairs) {
            int end = pair.indexOf('=');
            if (end < 1) {
                throw new ConfigException(field, "has '" + pair + "', must be KEY=VALUE");
            }
            map.put(pair.substring(0, end).strip(), pair.substring(end + 1).strip());
        }
        return map;
    }
}
