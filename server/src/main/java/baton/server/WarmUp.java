package baton.server;

import baton.engine.Engine;
import baton.engine.EngineListener;
import baton.engine.EngineUnavailableException;
import baton.engine.StepPhase;
import baton.grammar.FormatWarmUp;
import baton.kv.Deadline;
import baton.kv.KvTransferConfig;
import baton.kv.Ticker;
import io.vertx.core.http.HttpServerRequest;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Sends requests to an instance over its own port before it reports ready, so that the costs of first use are paid before: classes
 * are loaded, code is compiled, kernels are chosen, memory is touched.
 *
 * <p>Short prompts come first, then some of the longest that are expected to end within the budget, which a small model leaves mostly
 * unused. A running step is not aborted, so the warm-up may end one step late. The first prompt, of one token, has time of its own: an instance
 * that is ready has computed something.
 *
 * <p>A header with a random value marks the requests. They are not in the access log, and the engine treats them as
 * {@link Engine#warmUp} says.
 */
final class WarmUp {
    private static final Logger LOG = LoggerFactory.getLogger(WarmUp.class);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private static final String HEADER = "X-Baton-Warm-Up";
    private static final Duration CONNECT = Duration.ofSeconds(1);

    /** The longest that the first prompt is waited for, whatever the budget. */
    private static final Duration FIRST = Duration.ofSeconds(30);

    /** Hand-overs may take this fraction of the budget: one part of so many. */
    private static final int HANDOVERS_SHARE = 3;

    /** Tokens of prompts. */
    private static final int[] LENGTHS = {16, 128, 512, 1024};

    /** Tokens of a prompt for an instance that does not prefill. */
    private static final int SHORT = 128;

    private static final int OUTPUT = 3;
    private static final int SEQUENCES = 4;

    /** Cost of a step with one token, in prompt tokens. */
    private static final int STEP_COST = 16;

    /** Share of the remaining time that a prompt may be expected to take; it usually takes less than expected, as earlier ones were the first. */
    private static final double SHARE = 1.2;

    /** Prompts of the longest length that there is time for: the first requests are as long, and later ones gain little. */
    private static final int LONG_PROMPTS = 3;

    private static final String[] WORDS = {
        "the", "of", "and", "a", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with",
        "his", "they", "I", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what",
        "all", "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do", "how"
    };

    private static final String SCHEMA = """
            {"type": "object", "required": ["a"], "properties": {
              "a": {"type": "string", "maxLength": 9}, "b": {"type": "number", "minimum": 0}, "c": {"enum": ["d", 1]},
              "e": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}}, "f": {"type": "integer"}}}""";

    private final ServerConfig config;
    private final Engine engine;
    private final Duration budget;
    private final Ticker ticker;
    private final int output;
    private final int longest;
    private final String secret = UUID.randomUUID().toString();
    private final Random random = new Random(1);
    /** Number of prompts computed, by length. */
    private final Map<Integer, Integer> computed = new TreeMap<>();

    private long leastNanos = Long.MAX_VALUE;
    /** The model's least time per unit of {@link #cost}; written by the engine's thread. */
    private volatile double modelNanos = Double.POSITIVE_INFINITY;

    private volatile boolean over;

    /** @param budget for the whole warm-up */
    WarmUp(ServerConfig config, Engine engine, Duration budget, Ticker ticker) {
        this.config = config;
        this.engine = engine;
        this.budget = budget;
        this.ticker = ticker;
        KvTransferConfig transfer = engine.config().kvTransfer();
        // Prefill instances make one token per request, and the prompts that decode instances compute are short.
        output = transfer.isProducer() && !transfer.isConsumer() ? 1 : OUTPUT;
        longest = transfer.isConsumer() && !transfer.isProducer() ? SHORT : Integer.MAX_VALUE;
    }

    /** Whether the request is one of the warm-up. */
    boolean isOwn(HttpServerRequest request) {
        return secret.equals(request.getHeader(HEADER));
    }

    /** Whether the warm-up's requests are no longer served. */
    boolean isOver() {
        return over;
    }

    /**
     * Warms up; returns when the engine is at rest again. Errors are logged; the instance works without a warm-up.
     *
     * @param port the server's; with TLS one of this host without it
     * @param settle returns when the server has handled the end of the warm-up
     * @throws EngineUnavailableException if the engine has failed, or cannot compute a prompt of one token
     */
    void run(int port, Runnable settle) {
        long start = ticker.nanos();
        Deadline deadline = Deadline.after(ticker, budget);
        PrometheusMetrics unseen =
                new PrometheusMetrics(config.servedModelNames().getFirst());
        unseen.onStart(
                engine.config(),
                engine.maxModelLen(),
                engine.config().dtype().orElse(engine.model().dtype()),
                engine.status().totalBlocks());
        Optional<String> problem = Optional.empty();
        int handovers = 0;
        try (Engine.WarmUp warmUp = engine.warmUp(unseen.and(stopwatch()))) {
            // Beside the prompts, so that the server is ready as early.
            Thread.ofPlatform().daemon().name("baton-warm-up-formats").start(() -> FormatWarmUp.run(() -> over));
            try {
                handovers = warmUp.warmUpHandovers(budget.dividedBy(HANDOVERS_SHARE));
                computeAll(port, deadline);
                if (handovers > 0) {
                    // By compiled code now, which meets cases that it was not compiled for.
                    handovers += warmUp.warmUpHandovers(deadline.remaining().dividedBy(HANDOVERS_SHARE));
                }
                unseen.scrape(engine.status());
            } catch (SocketTimeoutException e) {
                LOG.debug("no time is left", e);
            } catch (IOException e) {
                problem = Optional.of(String.valueOf(e.getMessage()));
            } finally {
                over = true;
                settle.run();
            }
        }
        engine.status().failure().ifPresent(failure -> {
            throw new EngineUnavailableException("The engine has failed while it warmed up: " + failure);
        });
        String done = String.format(
                Locale.ROOT,
                "warmed up in %.1f s: %s%s",
                (ticker.nanos() - start) / 1e9,
                computedPrompts(),
                handovers == 0 ? "" : ", " + handovers + " hand-overs between stand-ins");
        if (problem.isEmpty() && computed.isEmpty()) {
            problem = Optional.of("no prompt was answered in time, so the first requests will take long");
        }
        problem.ifPresentOrElse(why -> LOG.warn("{}; it ended early: {}", done, why), () -> LOG.info("{}", done));
    }

    private String computedPrompts() {
        return computed.isEmpty()
                ? "no prompt"
                : computed.entrySet().stream()
                        .map(entry -> (entry.getValue() == 1 ? "" : entry.getValue() + " x ") + entry.getKey())
                        .collect(Collectors.joining(", ", "prompts of ", " tokens"));
    }

    private EngineListener stopwatch() {
        return new EngineListener() {
            @Override
            public void onStepTimes(StepTimes times) {
                long cost = times.tokens() - times.sequences() + (long) STEP_COST * times.sequences();
                modelNanos = Math.min(modelNanos, (double) times.nanos(StepPhase.MODEL) / cost);
            }
        };
    }

    private void computeAll(int port, Deadline deadline) throws IOException {
        Deadline first = deadline.remaining().compareTo(FIRST) > 0 ? deadline : Deadline.after(ticker, FIRST);
        Answer smallest = ask(port, "/v1/completions", completion(1, 1), first);
        if (smallest.status() == 500) {
            // The engine cannot compute anything.
            throw new EngineUnavailableException("A prompt of one token cannot be computed: " + smallest.body());
        }
        took(1, smallest);
        int most = Math.clamp(engine.maxModelLen() - 1 - output, 1, longest);
        List<Integer> lengths = Arrays.stream(LENGTHS)
                .map(length -> Math.min(length, most))
                .distinct()
                .boxed()
                .toList();
        compute(port, lengths.getFirst(), deadline);
        for (int prompts = 0; prompts < LONG_PROMPTS; prompts++) {
            Optional<Integer> length = longest(lengths, deadline);
            if (length.isEmpty()) {
                break;
            }
            compute(port, length.get(), deadline);
            if (prompts == 0) {
                batch(port, lengths.getFirst(), deadline);
            }
        }
    }

    /** The longest length that can be computed in time. */
    private Optional<Integer> longest(List<Integer> lengths, Deadline deadline) {
        double left = SHARE * deadline.remainingNanos() - leastNanos;
        // The engine's thread may not have reported a step yet.
        double each = Double.isInfinite(modelNanos) ? leastNanos : modelNanos;
        return lengths.reversed().stream()
                .filter(length -> each * cost(length) <= left)
                .findFirst();
    }

    /** Cost of a prompt in prompt tokens: each token of output is a step of its own. */
    private int cost(int tokens) {
        return tokens - 1 + output * STEP_COST;
    }

    /** Computes a prompt with the fields of a usual request. */
    private void compute(int port, int tokens, Deadline deadline) throws IOException {
        ObjectNode body = completion(tokens, output);
        if (computed.getOrDefault(tokens, 0) % 2 == 0) {
            body.put("temperature", 0.8).put("top_p", 0.95).put("top_k", 40);
        }
        if (output > 1) {
            body.put("stream", true).putObject("stream_options").put("include_usage", true);
        }
        if (engine.chatTemplate().isEmpty()) {
            took(tokens, ask(port, "/v1/completions", body, deadline));
            return;
        }
        String text = body.remove("prompt").asString();
        body.putArray("messages").addObject().put("role", "user").put("content", text);
        took(tokens, ask(port, "/v1/chat/completions", body, deadline));
    }

    /** Computes several sequences at once, with a format, log probabilities and stop strings. */
    private void batch(int port, int tokens, Deadline deadline) throws IOException {
        ObjectNode body = completion(tokens, output)
                .put("n", Math.min(SEQUENCES, engine.config().maxNumSeqs()))
                .put("temperature", 0.8)
                .put("logprobs", 2);
        body.putArray("stop").add("\u0000");
        body.putObject("structured_outputs").put("json", SCHEMA);
        Answer answer = ask(port, "/v1/completions", body, deadline);
        if (answer.status() == 400) {
            // The bytes of the tokenizer's tokens are not known.
            body.remove("structured_outputs");
            answer = ask(port, "/v1/completions", body, deadline);
        }
        took(tokens, answer);
    }

    private void took(int tokens, Answer answer) throws IOException {
        if (answer.status() != 200) {
            throw new IOException(
                    "a prompt of " + tokens + " tokens was answered with " + answer.status() + ": " + answer.body());
        }
        LOG.debug("a prompt of {} tokens took {} ms", tokens, TimeUnit.NANOSECONDS.toMillis(answer.nanos()));
        computed.merge(tokens, 1, Integer::sum);
        leastNanos = Math.min(leastNanos, answer.nanos());
    }

    private ObjectNode completion(int tokens, int most) {
        StringBuilder text = new StringBuilder();
        // A word is one token or more.
        for (int i = 0; i < tokens; i++) {
            text.append(i == 0 ? "" : " ").append(WORDS[random.nextInt(WORDS.length)]);
        }
        return MAPPER.createObjectNode()
                .put("prompt", text.toString())
                .put("truncate_prompt_tokens", tokens)
                .put("max_tokens", most)
                .put("ignore_eos", true)
                .put("cache_hit_threshold", 0)
                .put("temperature", 0);
    }

    private record Answer(int status, String body, long nanos) {}

    /**
     * Sends a request and reads its whole answer, with as little code outside the server as possible.
     *
     * @throws SocketTimeoutException if the deadline is over; nothing is sent after it
     */
    private Answer ask(int port, String path, ObjectNode json, Deadline deadline) throws IOException {
        if (deadline.isOver()) {
            throw new SocketTimeoutException("the warm-up's budget of " + budget + " is used up");
        }
        byte[] body = MAPPER.writeValueAsBytes(json);
        StringBuilder head = new StringBuilder("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n")
                .append("Content-Type: application/json\r\nConnection: close\r\nContent-Length: ")
                .append(body.length)
                .append("\r\n" + HEADER + ": ")
                .append(secret);
        config.apiKey()
                .ifPresent(key -> head.append("\r\nAuthorization: Bearer ").append(key));
        long start = ticker.nanos();
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(reachable(), port), (int) CONNECT.toMillis());
            socket.getOutputStream().write(head.append("\r\n\r\n").toString().getBytes(StandardCharsets.UTF_8));
            socket.getOutputStream().write(body);
            String answer = readAll(socket, deadline);
            int bodyStart = answer.indexOf("\r\n\r\n");
            if (!answer.startsWith("HTTP/1.1 ") || bodyStart < 0) {
                throw new IOException("a connection to this server ended without an answer");
            }
            int status = Integer.parseInt(answer.substring(9, 12));
            return new Answer(status, answer.substring(bodyStart).strip(), ticker.nanos() - start);
        }
    }

    private static String readAll(Socket socket, Deadline deadline) throws IOException {
        ByteArrayOutputStream answer = new ByteArrayOutputStream();
        byte[] buffer = new byte[16 << 10];
        InputStream in = socket.getInputStream();
        for (int read = 0; read >= 0; read = in.read(buffer)) {
            answer.write(buffer, 0, read);
            socket.setSoTimeout(deadline.remainingMillis());
        }
        return answer.toString(StandardCharsets.UTF_8);
    }

    /** The server's address for a client on this host. */
    private InetAddress reachable() throws IOException {
        InetAddress address = InetAddress.getByName(config.host());
        return config.tls().isPresent() || address.isAnyLocalAddress() ? InetAddress.getLoopbackAddress() : address;
    }
}
