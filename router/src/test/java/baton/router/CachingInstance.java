package baton.router;

import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvEventsConfig;
import baton.kv.Ticker;
import baton.messages.events.KvEventAccess;
import baton.messages.events.KvEventCodec;
import baton.messages.events.KvEventPublisher;
import io.vertx.core.http.HttpServerResponse;
import java.time.InstantSource;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A stand-in for an instance with a prefix cache of some blocks, of which the one used longest ago is evicted, and which publishes its KV events. Its
 * tokenizer makes a token of each character.
 */
final class CachingInstance implements AutoCloseable {
    static final int BLOCK = 16;

    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private final FakeInstance http;
    private final int blocks;
    /** Instances of other engines have other hashes. */
    private final long seed;

    private final LinkedHashMap<Long, Boolean> cache = new LinkedHashMap<>(16, 0.75f, true);
    private Optional<KvEventPublisher> publisher = Optional.empty();

    final AtomicLong promptTokens = new AtomicLong();
    final AtomicLong cachedTokens = new AtomicLong();

    CachingInstance(FakeInstance http, int blocks, long seed) {
        this.http = http;
        this.blocks = blocks;
        this.seed = seed;
        http.behaviour = this::answer;
        publish();
    }

    FakeInstance http() {
        return http;
    }

    int subscribers() {
        return publisher.map(KvEventPublisher::subscribers).orElse(0);
    }

    /** Publishes from number 0 on, at free ports. */
    private void publish() {
        publisher = Optional.of(KvEventPublisher.start(
                KvEventsConfig.fromJson(JsonFields.parse(
                        KvEventsConfig.FIELD,
                        "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:0\","
                                + " \"replay_endpoint\": \"tcp://127.0.0.1:0\"}")),
                new KvEventCodec(KvEventCodec.Hashes.INT),
                KvEventAccess.of(false, Optional.empty(), Optional.empty(), Map.of(), Ticker.system()),
                Ticker.system(),
                InstantSource.system()));
    }

    private void answer(FakeInstance.Received request, HttpServerResponse response) {
        String json = switch (request.uri()) {
            case "/kv_event_sources" ->
                "{\"0\": " + publisher.orElseThrow().source().toJson() + "}";
            case "/tokenize" -> {
                JsonNode body = MAPPER.readTree(request.body());
                int[] tokens = tokens(body);
                yield "{\"count\": " + tokens.length + ", \"tokens\": " + Arrays.toString(tokens) + "}";
            }
            default -> {
                compute(tokens(MAPPER.readTree(request.body())));
                yield RouterFixture.ANSWER;
            }
        };
        FakeInstance.json(200, json).accept(request, response);
    }

    private static int[] tokens(JsonNode body) {
        JsonNode prompt = body.has("prompt") ? body.get("prompt") : body.get("messages");
        return prompt.isArray() && prompt.get(0).isNumber()
                ? IntStream.range(0, prompt.size())
                        .map(i -> prompt.get(i).asInt())
                        .toArray()
                : (prompt.isString() ? prompt.asString() : prompt.toString())
                        .chars()
                        .toArray();
    }

    /** Finds the cached part of a prompt, and caches the rest. */
    private synchronized void compute(int[] tokens) {
        promptTokens.addAndGet(tokens.length);
        List<KvEvent> events = new ArrayList<>();
        long hash = seed;
        boolean hit = true;
        for (int at = 0; at + BLOCK <= tokens.length; at += BLOCK) {
            Optional<BlockHash> parent = at == 0 ? Optional.empty() : Optional.of(hash(hash));
            int[] block = Arrays.copyOfRange(tokens, at, at + BLOCK);
            hash = hash * 31 + Arrays.hashCode(block) * 0x9E3779B97F4A7C15L;
            hit &= cache.get(hash) != null;
            if (hit) {
                cachedTokens.addAndGet(BLOCK);
            } else if (cache.put(hash, true) == null) {
                events.add(new KvEvent.BlockStored(
                        List.of(hash(hash)),
                        parent,
                        Arrays.stream(block).boxed().toList(),
                        BLOCK,
                        KvEvent.MEDIUM_GPU));
            }
        }
        Iterator<Long> oldest = cache.keySet().iterator();
        while (cache.size() > blocks) {
            events.add(new KvEvent.BlockRemoved(List.of(hash(oldest.next())), KvEvent.MEDIUM_GPU));
            oldest.remove();
        }
        publisher.orElseThrow().publish(events);
    }

    /** As of an engine that was started anew, at the same address. */
    synchronized void restart() {
        http.stop();
        publisher.orElseThrow().close();
        cache.clear();
        publish();
        http.restart();
    }

    private static BlockHash hash(long last) {
        return new BlockHash(0, 0, 0, last);
    }

    @Override
    public void close() {
        publisher.ifPresent(KvEventPublisher::close);
    }
}
