package baton.trace;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Sends spans to an OpenTelemetry collector by OTLP/HTTP in JSON, in batches, from a thread of its own. A collector that is slow or gone
 * costs nothing but the spans: those that the queue does not hold, and batches that are refused or have failed {@value #ATTEMPTS} times,
 * are dropped and counted.
 */
public final class OtlpExporter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(OtlpExporter.class);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final int ATTEMPTS = 3;
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration IDLE = Duration.ofSeconds(1);
    private static final Duration FIRST_BACKOFF = Duration.ofSeconds(1);
    private static final Duration MOST_BACKOFF = Duration.ofSeconds(10);
    private static final Duration CLOSE_DEADLINE = Duration.ofSeconds(5);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(30);
    private static final int MOST_ANSWER_BYTES = 64 << 10;
    private static final int MOST_QUOTED = 200;

    /** The statuses after which the OTLP specification lets a client try again. */
    private static final Set<Integer> RETRIABLE = Set.of(429, 502, 503, 504);

    private final OtlpSettings settings;
    private final Map<String, Span.Value> resource;
    private final Ticker ticker;
    private final Clock clock;
    private final Bursts failures;
    private final BlockingQueue<Span> queue;
    private final AtomicLong exported = new AtomicLong();
    private final AtomicLong dropped = new AtomicLong();
    private final CountDownLatch closing = new CountDownLatch(1);
    private volatile Deadline end;
    private final Thread thread;

    /** @param retryAfter how long the collector asks to wait */
    private record Failure(String why, boolean retriable, Optional<Duration> retryAfter) {}

    /**
     * @param instance which of several processes of the same service this is, {@code service.instance.id}
     * @param clock tells times of spans, see {@link #epochNanos}
     */
    public OtlpExporter(OtlpSettings settings, String instance, Ticker ticker, Clock clock) {
        this.settings = settings;
        this.resource = new Span.Attributes()
                .put("service.name", settings.service())
                .put("service.instance.id", instance)
                .toMap();
        this.ticker = ticker;
        this.clock = clock;
        this.failures = new Bursts(1, BETWEEN_LINES, ticker);
        this.queue = new ArrayBlockingQueue<>(settings.queued());
        this.end = Deadline.never(ticker);
        this.thread = Thread.ofVirtual().name("otlp-exporter").start(this::run);
    }

    /** Takes a span, or drops it if too many wait. Any thread; does not block. */
    public void export(Span span) {
        if (closing.getCount() == 0 || !queue.offer(span)) {
            dropped.incrementAndGet();
        }
    }

    /** The time now, in nanoseconds since 1970, UTC. */
    public long epochNanos() {
        Instant now = clock.instant();
        return TimeUnit.SECONDS.toNanos(now.getEpochSecond()) + now.getNano();
    }

    /** Spans that the collector has taken. */
    public long exported() {
        return exported.get();
    }

    /** Spans that were not sent, or that the collector did not take. */
    public long dropped() {
        return dropped.get();
    }

    /** Sends the waiting spans, for a few seconds at most. Spans that come later are dropped. */
    @Override
    public void close() {
        end = Deadline.after(ticker, CLOSE_DEADLINE);
        closing.countDown();
        try {
            if (!thread.join(CLOSE_DEADLINE.plusSeconds(1))) {
                LOG.warn("{} took no spans in time", settings.endpoint());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(CONNECT_TIMEOUT)
                .build();
        try {
            List<Span> batch = new ArrayList<>(settings.batch());
            boolean open = true;
            while (open || !queue.isEmpty()) {
                open = !closing.await(0, TimeUnit.SECONDS);
                Span first = queue.poll(open ? IDLE.toMillis() : 0, TimeUnit.MILLISECONDS);
                if (first == null) {
                    continue;
                }
                if (queue.size() < settings.batch()) {
                    closing.await(settings.delay().toMillis(), TimeUnit.MILLISECONDS);
                }
                batch.add(first);
                queue.drainTo(batch, settings.batch() - 1);
                send(client, batch);
                batch.clear();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            dropped.addAndGet(queue.size());
            client.shutdownNow();
        }
    }

    private void send(HttpClient client, List<Span> batch) throws InterruptedException {
        byte[] body = OtlpJson.encode(resource, "baton", batch);
        Duration backoff = FIRST_BACKOFF;
        for (int attempt = 1; ; attempt++) {
            Optional<Failure> failure = post(client, body, batch.size());
            if (failure.isEmpty()) {
                return;
            }
            Failure failed = failure.get();
            if (!failed.retriable || attempt == ATTEMPTS || end.isOver() || closing.getCount() == 0) {
                drop(batch.size(), failed.why);
                return;
            }
            Duration wait = failed.retryAfter.orElse(backoff);
            closing.await((wait.compareTo(MOST_BACKOFF) < 0 ? wait : MOST_BACKOFF).toMillis(), TimeUnit.MILLISECONDS);
            backoff = backoff.multipliedBy(2);
        }
    }

    private void drop(int spans, String why) {
        dropped.addAndGet(spans);
        failures.event(more -> LOG.warn("{} spans are dropped, {}: {}{}", spans, settings.endpoint(), why, more));
    }

    /** Sends a batch once; empty if the collector has taken it, or a part of it. */
    private Optional<Failure> post(HttpClient client, byte[] body, int spans) throws InterruptedException {
        HttpRequest request = HttpRequest.newBuilder(settings.endpoint())
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofByteArray(body))
                .build();
        CompletableFuture<HttpResponse<byte[]>> sent =
                client.sendAsync(request, BodyHandlers.limiting(BodyHandlers.ofByteArray(), MOST_ANSWER_BYTES));
        try {
            HttpResponse<byte[]> answer =
                    sent.get(end.remaining(settings.timeout()).toMillis(), TimeUnit.MILLISECONDS);
            if (answer.statusCode() == 200) {
                taken(answer.body(), spans);
                return Optional.empty();
            }
            String text = new String(answer.body(), StandardCharsets.UTF_8);
            return Optional.of(new Failure(
                    "HTTP " + answer.statusCode() + " " + text.substring(0, Math.min(text.length(), MOST_QUOTED)),
                    RETRIABLE.contains(answer.statusCode()),
                    retryAfter(answer)));
        } catch (TimeoutException e) {
            sent.cancel(true);
            return Optional.of(
                    new Failure("no answer within " + settings.timeout().toMillis() + " ms", true, Optional.empty()));
        } catch (ExecutionException e) {
            return Optional.of(
                    new Failure(String.valueOf(e.getCause()), e.getCause() instanceof IOException, Optional.empty()));
        }
    }

    private static Optional<Duration> retryAfter(HttpResponse<?> answer) {
        return answer.headers()
                .firstValue("Retry-After")
                .filter(value -> value.matches("[0-9]{1,6}"))
                .map(value -> Duration.ofSeconds(Long.parseLong(value)));
    }

    /** Counts the spans that the collector reports as taken; a body that is no such answer counts as all. */
    private void taken(byte[] answer, int spans) {
        long rejected = 0;
        try {
            JsonNode partial = MAPPER.readTree(answer).path("partialSuccess");
            // A 64-bit number is a string.
            rejected = Math.clamp(partial.path("rejectedSpans").asLong(0), 0, spans);
            if (rejected > 0) {
                drop((int) rejected, partial.path("errorMessage").asString(""));
            }
        } catch (JacksonException e) {
            LOG.debug("{} answered in another format: {}", settings.endpoint(), e.getOriginalMessage());
        }
        exported.addAndGet(spans - rejected);
    }
}
