package baton.server;

import baton.engine.Engine;
import io.vertx.core.buffer.Buffer;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.InstantSource;

/** The answers that describe the instance: its models, metrics, version, and the addresses of its KV caches and events. */
final class InstanceInfo {
    static final String MODELS = "/v1/models";

    private final ServerConfig config;
    private final Engine engine;
    private final PrometheusMetrics metrics;
    private final ReplyWriter writer;
    private final ModelList modelList;

    InstanceInfo(
            ServerConfig config, Engine engine, PrometheusMetrics metrics, ReplyWriter writer, InstantSource clock) {
        this.config = config;
        this.engine = engine;
        this.metrics = metrics;
        this.writer = writer;
        this.modelList = new ModelList(config, engine, clock.instant().getEpochSecond());
    }

    void models(HttpExchange exchange) {
        exchange.json(200, writer.json().document(modelList::write));
    }

    void model(HttpExchange exchange) {
        String encoded = exchange.request().path().substring(MODELS.length() + 1);
        String name;
        try {
            // The decoder is for forms, in which a plus is a space.
            name = URLDecoder.decode(encoded.replace("+", "%2B"), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException _) {
            throw ApiException.badRequest("model name is not well encoded: " + Json.shortened(encoded));
        }
        if (!config.servedModelNames().contains(name)) {
            throw RequestReader.unknownModel(config, name);
        }
        exchange.json(200, writer.json().document(out -> modelList.write(out, name)));
    }

    void metrics(HttpExchange exchange) {
        exchange.reply(200, PrometheusMetrics.CONTENT_TYPE, Buffer.buffer(metrics.scrape(engine.status())));
    }

    /** The connector's address for routers that send prefill and decode requests at once, as an answer has it, and its name. */
    void kvTransferParams(HttpExchange exchange) {
        exchange.json(200, writer.json().document(out -> {
            out.writeStartObject();
            out.writeName("kv_transfer_params");
            engine.advertisedKvTransferParams()
                    .ifPresentOrElse(params -> out.writeTree(params.toJson()), out::writeNull);
            out.writeName("kv_connector");
            engine.config().kvTransfer().connector().ifPresentOrElse(out::writeString, out::writeNull);
            out.writeEndObject();
        }));
    }

    /** The publishers of KV events, in vLLM's form: the configuration by data-parallel rank. */
    void kvEventSources(HttpExchange exchange) {
        exchange.json(200, writer.json().document(out -> {
            out.writeStartObject();
            config.kvEventSources().forEach((rank, source) -> {
                out.writeName(Integer.toString(rank));
                out.writeTree(source.toJson());
            });
            out.writeEndObject();
        }));
    }

    void version(HttpExchange exchange) {
        exchange.json(200, writer.json().document(out -> {
            out.writeStartObject();
            out.writeStringProperty("version", config.version());
            out.writeEndObject();
        }));
    }

    /** vLLM's instances can sleep, this one never does. */
    void isSleeping(HttpExchange exchange) {
        exchange.json(200, writer.json().document(out -> {
            out.writeStartObject();
            out.writeBooleanProperty("is_sleeping", false);
            out.writeEndObject();
        }));
    }
}
