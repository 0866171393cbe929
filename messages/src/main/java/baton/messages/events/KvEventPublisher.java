package baton.messages.events;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.KvEvent;
import baton.kv.KvEventsConfig;
import baton.kv.Ticker;
import baton.kv.ZeroMqEndpoint;
import baton.messages.MessageException;
import baton.messages.zeromq.ZeroMqPublisher;
import java.time.Duration;
import java.time.Instant;
import java.time.InstantSource;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Publishes an instance's events as vLLM does. {@link #publish} is for one thread, the engine's, and does not wait: a thread of the
 * publisher encodes and sends. A batch for which there is no room in the queue is dropped, and its number with it, so that subscribers see
 * that there is something that they do not know. (vLLM's scheduler waits for room instead.)
 */
public final class KvEventPublisher implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(KvEventPublisher.class);

    /** Baton has one engine in an instance. */
    private static final int RANK = 0;

    /** The limit of events that wait to be published, by {@link #heldBytes}: batches may have thousands of blocks. */
    private static final long MOST_BYTES = 256L << 20;

    private static final Duration NAP = Duration.ofMillis(100);
    private static final Duration LAST_WORDS = Duration.ofSeconds(1);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);

    private final KvEventsConfig source;
    private final KvEventCodec codec;
    private final KvEventAccess access;
    private final ZeroMqPublisher socket;
    private final Ticker ticker;
    private final InstantSource clock;
    private final Bursts drops;
    private final BlockingQueue<Batch> queue;
    private final AtomicLong next = new AtomicLong();
    private final AtomicLong waitingBytes = new AtomicLong();
    private final LongAdder published = new LongAdder();
    private final LongAdder dropped = new LongAdder();
    private final Thread thread = Thread.ofPlatform().daemon().name("kv-events").unstarted(this::run);
    private volatile boolean closed;

    private record Batch(long number, double seconds, List<KvEvent> events, long bytes) {}

    private KvEventPublisher(
            KvEventsConfig source,
            KvEventCodec codec,
            KvEventAccess access,
            ZeroMqPublisher socket,
            Ticker ticker,
            InstantSource clock) {
        this.source = source;
        this.codec = codec;
        this.access = access;
        this.socket = socket;
        this.ticker = ticker;
        this.clock = clock;
        this.drops = new Bursts(1, BETWEEN_LINES, ticker);
        this.queue = new LinkedBlockingQueue<>(source.maxQueueSize());
    }

    /**
     * Listens, or begins to connect, and publishes until closed.
     *
     * @param config with events enabled
     * @param clock of the batches' times
     * @throws ConfigException if an address cannot be listened on, or may not
     */
    public static KvEventPublisher start(
            KvEventsConfig config, KvEventCodec codec, KvEventAccess access, Ticker ticker, InstantSource clock) {
        // Without a replay endpoint no messages are kept.
        int replayed = config.replayEndpoint().isPresent() ? config.bufferSteps() : 0;
        ZeroMqPublisher socket = new ZeroMqPublisher(
                config.topic(),
                ZeroMqPublisher.Bounds.of(config.hwm(), replayed),
                access::admits,
                access.peers(),
                ticker);
        access.expectPeers();
        try {
            ZeroMqEndpoint endpoint = config.endpoint();
            if (config.binds()) {
                endpoint = listen(KvEventsConfig.FIELD + ".endpoint", access, endpoint, socket::listen);
            } else {
                socket.connect(endpoint.host(), endpoint.port());
            }
            Optional<ZeroMqEndpoint> replay = config.replayEndpoint()
                    .map(each ->
                            listen(KvEventsConfig.FIELD + ".replay_endpoint", access, each, socket::listenForReplays));
            KvEventPublisher publisher =
                    new KvEventPublisher(config.at(endpoint, replay), codec, access, socket, ticker, clock);
            publisher.thread.start();
            log.info(
                    "KV events are published at {}{}",
                    endpoint,
                    replay.map(at -> ", past ones at " + at).orElse(""));
            return publisher;
        } catch (RuntimeException e) {
            socket.close();
            throw e;
        }
    }

    @FunctionalInterface
    private interface Listening {
        int listen(String host, int port) throws MessageException;
    }

    private static ZeroMqEndpoint listen(
            String field, KvEventAccess access, ZeroMqEndpoint endpoint, Listening listening) {
        ZeroMqEndpoint at = access.listening(field, endpoint);
        try {
            return new ZeroMqEndpoint(
                    at.host(), listening.listen(at.isEveryAddress() ? "0.0.0.0" : at.host(), at.port()));
        } catch (MessageException e) {
            throw new ConfigException(field, "is " + endpoint + ": " + e.getMessage(), e);
        }
    }

    /** Publishes a batch of events; those of one engine step belong together. Does not wait. */
    public void publish(List<KvEvent> events) {
        if (events.isEmpty() || closed) {
            return;
        }
        Instant now = clock.instant();
        long number = next.getAndIncrement();
        long bytes = events.stream().mapToLong(KvEventPublisher::heldBytes).sum();
        long waiting = waitingBytes.getAndAdd(bytes);
        boolean fits = waiting == 0 || waiting + bytes <= MOST_BYTES;
        if (!fits
                || !queue.offer(
                        new Batch(number, now.getEpochSecond() + now.getNano() / 1e9, List.copyOf(events), bytes))) {
            waitingBytes.addAndGet(-bytes);
            dropped.increment();
            drops.event(more -> log.warn(
                    "KV events are made faster than they are published: {} batches wait (max_queue_size={}, at most {} MiB), batch {} is dropped{}",
                    queue.size(),
                    source.maxQueueSize(),
                    MOST_BYTES >> 20,
                    number,
                    more));
        }
    }

    /** The approximate memory of an event: hashes with their headers, and boxed token ids. */
    private static long heldBytes(KvEvent event) {
        return switch (event) {
            case KvEvent.BlockStored stored ->
                64L * stored.blockHashes().size() + 20L * stored.tokenIds().size();
            case KvEvent.BlockRemoved removed -> 64L * removed.blockHashes().size();
            case KvEvent.AllBlocksCleared _ -> 16;
        };
    }

    private void run() {
        try {
            while (!closed || !queue.isEmpty()) {
                Batch batch = queue.poll(NAP.toNanos(), TimeUnit.NANOSECONDS);
                if (batch != null) {
                    send(batch);
                    waitingBytes.addAndGet(-batch.bytes());
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void send(Batch batch) {
        try {
            socket.publish(batch.number(), codec.encode(batch.seconds(), batch.events(), RANK));
            published.increment();
        } catch (RuntimeException e) {
            dropped.increment();
            drops.event(more -> log.warn("batch {} of KV events cannot be published{}", batch.number(), more, e));
        }
    }

    /** The configuration with the addresses that are listened on. */
    public KvEventsConfig source() {
        return source;
    }

    /** Batches published. */
    public long published() {
        return published.sum();
    }

    /** Batches that no subscriber got. */
    public long dropped() {
        return dropped.sum();
    }

    /** Messages that subscribers lost because they were slow, each counted for each subscriber. */
    public long lost() {
        return socket.lost();
    }

    /** Connections from hosts that are not allowed. */
    public long refused() {
        return access.refused();
    }

    /** Connected subscribers that asked for the topic. */
    public int subscribers() {
        return socket.subscribers();
    }

    /** Publishes the waiting events, for a second at most, as vLLM does, and closes the ports. */
    @Override
    public void close() {
        closed = true;
        Deadline deadline = Deadline.after(ticker, LAST_WORDS);
        try {
            if (!thread.join(deadline.remaining().plusMillis(1))) {
                log.warn("{} batches of KV events are not published: there was no time", queue.size());
                thread.interrupt();
            }
            socket.flush(deadline);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            socket.close();
        }
    }
}
