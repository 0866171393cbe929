package baton.kv;

import java.util.List;
import java.util.Locale;
import java.util.Optional;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * vLLM's {@code KVEventsConfig} ({@code vllm/config/kv_events.py}): whether and where changes of an instance's KV caches are published.
 *
 * @param enabled {@code enable_kv_cache_events}: whether events are made at all
 * @param publisher where they go
 * @param endpoint of the PUB socket, in ZeroMQ's form: with {@code *} or an IPv6 address that has {@code ::} it is listened on, else
 *     connected to
 * @param replayEndpoint to listen on for requests of past messages; empty for none
 * @param bufferSteps messages that are kept for those
 * @param hwm messages that a slow subscriber may have waiting, further ones are lost to it; 0 for no limit but that of bytes
 * @param maxQueueSize batches that wait to be published, further ones are dropped
 * @param topic first frame of each message
 */
public record KvEventsConfig(
        boolean enabled,
        Publisher publisher,
        ZeroMqEndpoint endpoint,
        Optional<ZeroMqEndpoint> replayEndpoint,
        int bufferSteps,
        int hwm,
        int maxQueueSize,
        String topic) {
    /** The name of the whole in errors. */
    public static final String FIELD = "kv_events_config";

    private static final String ENABLED = "enable_kv_cache_events";
    private static final String PUBLISHER = "publisher";
    private static final String ENDPOINT = "endpoint";
    private static final String REPLAY_ENDPOINT = "replay_endpoint";
    private static final String BUFFER_STEPS = "buffer_steps";
    private static final String HWM = "hwm";
    private static final String MAX_QUEUE_SIZE = "max_queue_size";
    private static final String TOPIC = "topic";

    /** All its fields. */
    public static final List<Setting> FIELDS = List.of(
            Setting.of(ENABLED, false, "Whether there are events."),
            Setting.absent(
                    PUBLISHER, "`zmq` if there are events, else `null`", "`zmq`, or `null`: they are not published."),
            Setting.of(
                    ENDPOINT,
                    "tcp://*:5557",
                    "With `*`, or an IPv6 address that has `::`, subscribers connect to it; any other host is connected to."),
            Setting.absent(REPLAY_ENDPOINT, "none", "Where past messages can be asked for."),
            Setting.of(BUFFER_STEPS, 10_000, "Past messages that are kept, at most 64 MiB of them."),
            Setting.of(HWM, 100_000, "Messages that wait for a subscriber, at most 64 MiB of them; 0: bytes only."),
            Setting.of(MAX_QUEUE_SIZE, 100_000, "Batches that wait to be published."),
            Setting.of(TOPIC, "", "First frame of each message."));

    /** Where events go. */
    public enum Publisher {
        /** Nowhere. */
        NULL,
        /** Publishes to subscribers over ZeroMQ. */
        ZMQ;

        public String configName() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** @throws ConfigException if a value is out of range */
    public KvEventsConfig {
        if (!binds(endpoint) && endpoint.port() == 0) {
            throw new ConfigException(
                    FIELD + "." + ENDPOINT, "is " + endpoint + ", must have a port to connect to, or * as its host");
        }
        Require.atLeast(FIELD + "." + BUFFER_STEPS, bufferSteps, 0);
        Require.atLeast(FIELD + "." + HWM, hwm, 0);
        Require.atLeast(FIELD + "." + MAX_QUEUE_SIZE, maxQueueSize, 1);
    }

    /**
     * Reads vLLM's JSON form. Fields that are absent or {@code null} have their defaults; that of the publisher is {@code zmq} if events
     * are enabled.
     *
     * @throws ConfigException if a field is unknown, has the wrong type or a value that is not allowed
     */
    public static KvEventsConfig fromJson(JsonFields given) {
        given.requireKnown(FIELDS);
        JsonFields json = given.withDefaults(FIELDS);
        boolean enabled = json.bool(ENABLED).orElseThrow();
        return new KvEventsConfig(
                enabled,
                json.string(PUBLISHER)
                        .map(name -> ConfigException.choose(
                                json.field(PUBLISHER), name, Publisher.values(), Publisher::configName))
                        .orElse(enabled ? Publisher.ZMQ : Publisher.NULL),
                ZeroMqEndpoint.parse(json.field(ENDPOINT), json.string(ENDPOINT).orElseThrow()),
                json.string(REPLAY_ENDPOINT).map(text -> ZeroMqEndpoint.parse(json.field(REPLAY_ENDPOINT), text)),
                json.integerAtLeast(BUFFER_STEPS, 0).orElseThrow(),
                json.integerAtLeast(HWM, 0).orElseThrow(),
                json.integerAtLeast(MAX_QUEUE_SIZE, 1).orElseThrow(),
                json.string(TOPIC).orElseThrow());
    }

    /**
     * Takes {@code --kv-events-config} out of a command line, in all forms of {@link JsonObjectArgs}.
     *
     * @throws ConfigException if an option lacks its value, or the configuration is wrong
     */
    public static JsonObjectArgs<KvEventsConfig> fromArgs(List<String> args) {
        return JsonObjectArgs.parse("--kv-events-config", KvEventsConfig::isText, args)
                .as(object -> fromJson(JsonFields.of(FIELD, object)));
    }

    /** vLLM's JSON form, defaults written out; {@link #fromJson} gives an equal configuration. */
    public ObjectNode toJson() {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        json.put(ENABLED, enabled);
        json.put(PUBLISHER, publisher.configName());
        json.put(ENDPOINT, endpoint.toString());
        replayEndpoint.ifPresentOrElse(
                value -> json.put(REPLAY_ENDPOINT, value.toString()), () -> json.putNull(REPLAY_ENDPOINT));
        json.put(BUFFER_STEPS, bufferSteps);
        json.put(HWM, hwm);
        json.put(MAX_QUEUE_SIZE, maxQueueSize);
        json.put(TOPIC, topic);
        return json;
    }

    /** Whether events are published. */
    public boolean publishes() {
        return enabled && publisher == Publisher.ZMQ;
    }

    /** Whether the PUB socket listens, as vLLM decides it: on {@code *} and on addresses with {@code ::}. Else it connects. */
    public boolean binds() {
        return binds(endpoint);
    }

    /** The same at the addresses that were found to listen on. */
    public KvEventsConfig at(ZeroMqEndpoint endpoint, Optional<ZeroMqEndpoint> replayEndpoint) {
        return new KvEventsConfig(enabled, publisher, endpoint, replayEndpoint, bufferSteps, hwm, maxQueueSize, topic);
    }

    private static boolean binds(ZeroMqEndpoint endpoint) {
        return endpoint.isEveryAddress() || endpoint.host().contains("::");
    }

    /** True if the field holds text, so that {@code 42} on a command line is text too. */
    private static boolean isText(String field) {
        return switch (field) {
            case PUBLISHER, ENDPOINT, REPLAY_ENDPOINT, TOPIC -> true;
            default -> false;
        };
    }
}
