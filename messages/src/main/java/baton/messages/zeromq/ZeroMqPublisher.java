package baton.messages.zeromq;

import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import java.io.IOException;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import java.util.function.Predicate;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A PUB socket with numbered messages of one topic, and a ROUTER socket that sends past ones again: the protocol of vLLM's
 * {@code ZmqEventPublisher}.
 *
 * <ul>
 *   <li>A message is {@code [topic, number, payload]}, the number as 8 bytes, big endian.
 *   <li>A replay request is {@code ["", number]}, as a REQ socket sends it or a DEALER socket with an empty frame first. The answers are
 *       {@code ["", topic, number, payload]} for each message that is kept and has that number or a greater one, then {@code ["", "",
 *       -1, ""]}.
 * </ul>
 *
 * <p>Publishing does not wait for any subscriber: each has a queue of its own, and a message that does not fit is lost to it and counted.
 * {@link Bounds} limits the memory that a peer can occupy.
 */
public final class ZeroMqPublisher implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(ZeroMqPublisher.class);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);
    private static final Duration FLUSH_POLL = Duration.ofMillis(2);
    private static final int REPLAY_REQUEST_BYTES = 512;
    private static final Duration IDLE_REPLAY = Duration.ofMinutes(5);

    private final byte[] topic;
    private final Bounds bounds;
    private final Predicate<InetAddress> admitted;
    private final PeerAccess access;
    private final Ticker ticker;
    private final Bursts losses;
    private final ReplayBuffer past;
    private final Set<Subscriber> subscribers = ConcurrentHashMap.newKeySet();
    private final List<AutoCloseable> ports = new CopyOnWriteArrayList<>();
    private final LongAdder lost = new LongAdder();

    /**
     * Upper bounds.
     *
     * @param hwm messages that wait for one subscriber; 0 for no limit but that of bytes
     * @param subscriberBytes of messages that wait for one subscriber
     * @param replayed messages kept to be sent again
     * @param replayBytes of those
     * @param connections of each port; as many more may be in their handshake
     * @param subscriptions of one subscriber, and {@code topicBytes} of one subscription
     * @param exchange time for a handshake, to complete a message that is begun, and to take one message of a replay
     * @param stalled time in which a subscriber that has messages waiting has to take one; else it is disconnected
     */
    public record Bounds(
            int hwm,
            long subscriberBytes,
            int replayed,
            long replayBytes,
            int connections,
            int subscriptions,
            int topicBytes,
            Duration exchange,
            Duration stalled) {
        /** 64 MiB for each subscriber and for replays, 128 connections. */
        public static Bounds of(int hwm, int replayed) {
            return new Bounds(
                    hwm, 64 << 20, replayed, 64 << 20, 128, 64, 1024, Duration.ofSeconds(5), Duration.ofMinutes(1));
        }
    }

    /**
     * @param admitted whether a connection from an address is served; must not wait
     * @param access whether connections are sealed
     */
    public ZeroMqPublisher(
            String topic, Bounds bounds, Predicate<InetAddress> admitted, PeerAccess access, Ticker ticker) {
        this.access = access;
        this.topic = topic.getBytes(StandardCharsets.UTF_8);
        this.bounds = bounds;
        this.admitted = admitted;
        this.ticker = ticker;
        this.losses = new Bursts(1, BETWEEN_LINES, ticker);
        this.past = new ReplayBuffer(bounds.replayed(), bounds.replayBytes());
    }

    /**
     * Listens for subscribers.
     *
     * @param port 0 for any free one
     * @return the port
     * @throws MessageException if the address cannot be had
     */
    public int listen(String host, int port) throws MessageException {
        return start(
                new BoundSocket.Kind("event publisher", "PUB", Set.of("SUB", "XSUB"), false, false),
                host,
                port,
                1 + bounds.topicBytes(),
                Duration.ofDays(1),
                caller -> subscriber(new Subscriber.Link() {
                    @Override
                    public void send(List<byte[]> frames) throws IOException {
                        caller.push(frames);
                    }

                    @Override
                    public void end() {
                        caller.end();
                    }
                }));
    }

    /**
     * Listens for replay requests.
     *
     * @param port 0 for any free one
     * @return the port
     * @throws MessageException if the address cannot be had
     */
    public int listenForReplays(String host, int port) throws MessageException {
        return start(
                BoundSocket.Kind.router("event replay", true),
                host,
                port,
                REPLAY_REQUEST_BYTES,
                IDLE_REPLAY,
                Replay::new);
    }

    /** Connects to a subscriber's listening socket, and again whenever the connection cannot be made or ends. Returns at once. */
    public void connect(String host, int port) {
        SubscriberCall call = new SubscriberCall(host, port, bounds, access, this::subscriber, ticker);
        ports.add(call);
        call.start();
    }

    private int start(
            BoundSocket.Kind kind,
            String host,
            int port,
            int messageBytes,
            Duration idle,
            Function<BoundSocket.Caller, BoundSocket.Guest> reception)
            throws MessageException {
        BoundSocket socket = new BoundSocket(
                ticker,
                new ZeroMqSideChannel.Limits(
                        messageBytes, messageBytes, 4, bounds.connections(), bounds.exchange(), idle),
                host,
                port,
                kind,
                new BoundSocket.Peers(access, admitted),
                reception);
        ports.add(socket);
        socket.start();
        return socket.port();
    }

    private Subscriber subscriber(Subscriber.Link link) {
        Subscriber subscriber = new Subscriber(link, bounds, topic, ticker, subscribers::remove);
        subscribers.add(subscriber);
        subscriber.start();
        return subscriber;
    }

    /** Hands a message to all subscribers, and keeps it for replays. Numbers must grow. Does not wait. */
    public void publish(long sequence, byte[] payload) {
        Publication message = new Publication(sequence, topic, payload);
        past.add(message);
        for (Subscriber subscriber : subscribers) {
            if (subscriber.isOver()) {
                subscriber.end();
            }
            if (!subscriber.offer(message)) {
                lost.increment();
                losses.event(
                        more -> log.warn("a subscriber to events is slow: message {} is lost to it{}", sequence, more));
            }
        }
    }

    /** Connected subscribers that asked for the topic. */
    public int subscribers() {
        return Math.toIntExact(
                subscribers.stream().filter(Subscriber::wantsTopic).count());
    }

    /** Messages that subscribers lost because they were slow, each counted for each subscriber. */
    public long lost() {
        return lost.sum();
    }

    /** Returns when all waiting messages have been sent to the subscribers, or the deadline is over. */
    public void flush(Deadline deadline) {
        while (!deadline.isOver() && !subscribers.stream().allMatch(Subscriber::isDone)) {
            LockSupport.parkNanos(deadline.remaining(FLUSH_POLL).toNanos());
        }
    }

    @Override
    public void close() {
        new ArrayList<>(ports).forEach(Closing::quietly);
    }

    /** A connection that asks for past messages. */
    private final class Replay implements BoundSocket.Guest {
        private final BoundSocket.Caller caller;

        private Replay(BoundSocket.Caller caller) {
            this.caller = caller;
        }

        @Override
        public boolean received(List<byte[]> frames) throws IOException {
            if (frames.size() != 2 || frames.getFirst().length != 0 || frames.getLast().length != Long.BYTES) {
                throw new Zmtp.Violation("a replay request is an empty frame and one of 8 bytes");
            }
            long from = ByteBuffer.wrap(frames.getLast()).getLong();
            // Messages published meanwhile are not waited for, so that a slow reader has an end.
            long last = past.last().orElse(0L);
            for (Optional<Publication> next = past.first(from);
                    next.isPresent() && Long.compareUnsigned(next.get().sequence(), last) <= 0;
                    next = past.first(next.get().sequence() + 1)) {
                List<byte[]> answer = new ArrayList<>(List.of(new byte[0]));
                answer.addAll(next.get().frames());
                caller.send(answer);
            }
            caller.send(List.of(new byte[0], new byte[0], Publication.eightBytes(-1), new byte[0]));
            return true;
        }

        @Override
        public boolean isGreeted() {
            return true;
        }

        @Override
        public void left() {}
    }
}
