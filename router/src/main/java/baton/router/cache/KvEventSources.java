package baton.router.cache;

import baton.kv.ConfigException;
import baton.kv.ZeroMqEndpoint;
import baton.messages.zeromq.ZeroMqSubscription;
import baton.router.upstream.Instance;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The publishers of an instance's events, from {@code GET /kv_event_sources} of Baton and vLLM. */
final class KvEventSources {
    static final String PATH = "/kv_event_sources";

    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final int MOST_RANKS = 64;

    private KvEventSources() {}

    /**
     * Reads an answer: publishers by data-parallel rank. The host is the instance's: an instance cannot redirect the router to other hosts,
     * and a publisher that listens on all addresses does not know the reachable one.
     *
     * @return empty if nothing is published
     * @throws ConfigException if the answer is malformed
     */
    static List<ZeroMqSubscription.Source> read(Instance instance, byte[] answer) {
        JsonNode ranks;
        try {
            ranks = MAPPER.readTree(answer);
        } catch (JacksonException e) {
            throw new ConfigException(PATH, "not valid JSON: " + e.getOriginalMessage(), e);
        }
        if (!ranks.isObject() || ranks.size() > MOST_RANKS) {
            throw new ConfigException(PATH, "must be an object of at most " + MOST_RANKS + " ranks");
        }
        List<ZeroMqSubscription.Source> sources = new ArrayList<>();
        for (JsonNode rank : ranks.values()) {
            if (rank.path("enable_kv_cache_events").asBoolean(false)
                    && rank.path("publisher").asString("zmq").equals("zmq")) {
                sources.add(new ZeroMqSubscription.Source(
                        at(instance, "endpoint", rank.path("endpoint").asString("")),
                        Optional.of(rank.path("replay_endpoint").asString(""))
                                .filter(text -> !text.isEmpty())
                                .map(text -> at(instance, "replay_endpoint", text)),
                        rank.path("topic").asString("")));
            }
        }
        return sources;
    }

    private static ZeroMqEndpoint at(Instance instance, String field, String text) {
        return new ZeroMqEndpoint(
                instance.host(), ZeroMqEndpoint.parse(field, text).port());
    }
}
