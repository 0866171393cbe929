package baton.router;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.cache.KvFeeds;
import baton.router.cache.TokenChain;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.TokenizeResult;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.ObjectReadContext;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.json.JsonMapper;

/**
 * The tokens of prompts, to look up in the blocks of instances: those that are in the request, else those that an instance answers at
 * {@code /tokenize}. A request does not wait longer than {@link #DEADLINE} for that; without tokens it is routed by the prompts sent to
 * instances before. Any event loop.
 */
final class PromptTokens {
    static final Duration DEADLINE = Duration.ofMillis(500);

    private static final String PATH = "/tokenize";
    private static final Duration SHUNNED = Duration.ofSeconds(10);
    private static final JsonFactory FACTORY = new JsonFactory();
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /** Fields of a request that decide about its tokens: of vLLM's {@code TokenizeCompletionRequest} and {@code TokenizeChatRequest}. */
    private static final List<String> FIELDS = List.of(
            "model",
            "prompt",
            "messages",
            "tools",
            "chat_template",
            "chat_template_kwargs",
            "add_special_tokens",
            "add_generation_prompt",
            "continue_final_message");

    private final KvFeeds feeds;
    private final boolean tokenize;
    private final Instances instances;
    private final RouterMetrics metrics;
    private final AtomicInteger turn = new AtomicInteger();
    /** Instances that have not answered, until when on the ticker's clock. */
    private final Map<Instance, Long> shunned = new ConcurrentHashMap<>();

    /** @param tokenize whether instances are asked */
    PromptTokens(KvFeeds feeds, boolean tokenize, Instances instances, RouterMetrics metrics) {
        this.feeds = feeds;
        this.tokenize = tokenize;
        this.instances = instances;
        this.metrics = metrics;
    }

    /** The events that say which blocks instances hold. */
    KvFeeds feeds() {
        return feeds;
    }

    /**
     * The tokens of a completion's prompt, if they can be known. Never fails.
     *
     * @param headers of the legs
     * @param maxBytes of an answer
     */
    Future<Optional<TokenChain>> of(
            UpstreamClient upstream, JsonObjectText body, MultiMap headers, int maxBytes, BodyWorker worker) {
        if (!feeds.isFollowing()) {
            return Future.succeededFuture(Optional.empty());
        }
        Optional<byte[]> prompt = body.value("prompt");
        if (prompt.isPresent() && prompt.get()[0] == '[') {
            return Future.succeededFuture(numbers(prompt.get()).map(tokens -> {
                metrics.count(RouterMetric.PROMPT_TOKENS_KNOWN, TokenizeResult.GIVEN);
                return chain(body, tokens);
            }));
        }
        Optional<Instance> asked = tokenize && (prompt.isPresent() || body.hasNonNull("messages"))
                ? next(upstream.ticker().nanos())
                : Optional.empty();
        if (asked.isEmpty()) {
            return Future.succeededFuture(Optional.empty());
        }
        Instance instance = asked.get();
        MultiMap own = MultiMap.caseInsensitiveMultiMap()
                .addAll(headers)
                .remove(HttpHeaders.ACCEPT_ENCODING)
                .set(HttpHeaders.CONTENT_TYPE, "application/json");
        return new Question(HttpMethod.POST, PATH, own, question(body), DEADLINE, maxBytes)
                .ask(upstream, instance)
                .compose(answer -> answer.status() == 200
                        ? worker.run(answer.text().length(), () -> read(answer.body()))
                        : refused(instance, answer.status(), upstream.ticker().nanos()))
                .map(tokens -> {
                    metrics.count(
                            RouterMetric.PROMPT_TOKENS_KNOWN,
                            tokens.isPresent() ? TokenizeResult.ASKED : TokenizeResult.FAILED);
                    return tokens.map(each -> chain(body, each));
                })
                .recover(_ -> {
                    shun(instance, upstream.ticker().nanos());
                    metrics.count(RouterMetric.PROMPT_TOKENS_KNOWN, TokenizeResult.FAILED);
                    return Future.succeededFuture(Optional.empty());
                });
    }

    /** A prompt that the instance refuses is not its fault. */
    private Future<Optional<int[]>> refused(Instance instance, int status, long now) {
        if (status != 400 && status != 413) {
            shun(instance, now);
        }
        return Future.succeededFuture(Optional.empty());
    }

    private void shun(Instance instance, long now) {
        shunned.entrySet().removeIf(each -> now - each.getValue() > 0);
        shunned.put(instance, now + SHUNNED.toNanos());
    }

    /** The one with the fewest requests, of both roles, one after the other. */
    private Optional<Instance> next(long now) {
        int first = turn.getAndIncrement() & Integer.MAX_VALUE;
        @Nullable Instance best = null;
        for (InstanceSet set : instances.sets()) {
            List<Instance> all = set.all();
            for (int i = 0; i < all.size(); i++) {
                Instance each = all.get((first + i) % all.size());
                Long until = shunned.get(each);
                if (each.isUp()
                        && !each.isTripped()
                        && (until == null || now - until > 0)
                        && (best == null || each.running() < best.running())) {
                    best = each;
                }
            }
        }
        return Optional.ofNullable(best);
    }

    private TokenChain chain(JsonObjectText body, int[] tokens) {
        return new TokenChain(
                tokens, text(body, "cache_salt"), text(body, "model").filter(feeds::isLora));
    }

    /** A field that is a string. */
    static Optional<String> text(JsonObjectText body, String field) {
        return body.value(field).filter(value -> value[0] == '"').map(value -> MAPPER.readValue(value, String.class));
    }

    private static Buffer question(JsonObjectText body) {
        Buffer question = Buffer.buffer().appendByte((byte) '{');
        for (String field : FIELDS) {
            body.value(field).ifPresent(value -> {
                if (question.length() > 1) {
                    question.appendByte((byte) ',');
                }
                question.appendString("\"" + field + "\":").appendBytes(value);
            });
        }
        return question.appendByte((byte) '}');
    }

    private static Optional<int[]> read(Buffer answer) {
        try {
            return JsonObjectText.parse("the answer", answer.getBytes())
                    .value("tokens")
                    .flatMap(PromptTokens::numbers);
        } catch (ConfigException e) {
            return Optional.empty();
        }
    }

    /** An array of token ids, or an array with one such array. */
    private static Optional<int[]> numbers(byte[] json) {
        try (JsonParser parser = FACTORY.createParser(ObjectReadContext.empty(), json)) {
            if (parser.nextToken() != JsonToken.START_ARRAY) {
                return Optional.empty();
            }
            JsonToken token = parser.nextToken();
            boolean nested = token == JsonToken.START_ARRAY;
            if (nested) {
                token = parser.nextToken();
            }
            int[] numbers = new int[Math.max(16, json.length / 4)];
            int count = 0;
            while (token == JsonToken.VALUE_NUMBER_INT) {
                if (count == numbers.length) {
                    numbers = Arrays.copyOf(numbers, count * 2);
                }
                numbers[count++] = parser.getIntValue();
                token = parser.nextToken();
            }
            boolean whole = token == JsonToken.END_ARRAY && (!nested || parser.nextToken() == JsonToken.END_ARRAY);
            return whole && count > 0 ? Optional.of(Arrays.copyOf(numbers, count)) : Optional.empty();
        } catch (JacksonException e) {
            return Optional.empty();
        }
    }
}
