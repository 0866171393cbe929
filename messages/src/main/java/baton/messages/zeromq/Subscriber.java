package baton.messages.zeromq;

import baton.kv.Deadline;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;

/** A connected SUB socket: its topics, and the messages that wait for it. A thread of its own sends. */
final class Subscriber implements BoundSocket.Guest {
    private static final int SUBSCRIBE = 1;
    private static final int CANCEL = 0;
    private static final Duration NAP = Duration.ofMinutes(1);

    /** The connection. */
    interface Link {
        void send(List<byte[]> frames) throws IOException;

        /** Ends the connection, and with it a send that waits. */
        void end();
    }

    private final Link link;
    private final ZeroMqPublisher.Bounds bounds;
    private final byte[] topic;
    private final Ticker ticker;
    private final Consumer<Subscriber> whenLeft;

    @GuardedBy("this")
    private final ArrayDeque<Publication> waiting = new ArrayDeque<>();

    @GuardedBy("this")
    private final Set<String> prefixes = new HashSet<>();

    @GuardedBy("this")
    private long bytes;

    @GuardedBy("this")
    private boolean left;

    private volatile boolean sending;
    private volatile long sendingSince;

    /**
     * @param topic of all messages
     * @param whenLeft is called once when the connection has ended
     */
    Subscriber(Link link, ZeroMqPublisher.Bounds bounds, byte[] topic, Ticker ticker, Consumer<Subscriber> whenLeft) {
        this.link = link;
        this.bounds = bounds;
        this.topic = topic;
        this.ticker = ticker;
        this.whenLeft = whenLeft;
    }

    void start() {
        Thread.ofVirtual().name("zeromq-subscriber").start(this::write);
    }

    /**
     * Queues a message if it is subscribed to. Does not wait.
     *
     * @return false if there is no room, so that it is lost to this subscriber
     */
    synchronized boolean offer(Publication message) {
        if (left || !isWanted()) {
            return true;
        }
        if ((bounds.hwm() > 0 && waiting.size() >= bounds.hwm())
                || bytes + message.weight() > bounds.subscriberBytes()) {
            return false;
        }
        waiting.add(message);
        bytes += message.weight();
        notifyAll();
        return true;
    }

    synchronized boolean wantsTopic() {
        return !left && isWanted();
    }

    /** Whether it has been sent everything. */
    synchronized boolean isDone() {
        return left || (waiting.isEmpty() && !sending);
    }

    @GuardedBy("this")
    private boolean isWanted() {
        return prefixes.stream().anyMatch(prefix -> startsWith(topic, prefix));
    }

    private static boolean startsWith(byte[] topic, String prefix) {
        byte[] wanted = prefix.getBytes(StandardCharsets.ISO_8859_1);
        return topic.length >= wanted.length && Arrays.equals(topic, 0, wanted.length, wanted, 0, wanted.length);
    }

    /** Subscriptions are messages of one frame: 1 or 0, then the topic's beginning (ZMTP 3.0, rfc.zeromq.org/spec/23). */
    @Override
    public boolean received(List<byte[]> frames) throws IOException {
        byte[] frame = frames.getFirst();
        if (frames.size() != 1 || frame.length == 0 || (frame[0] != SUBSCRIBE && frame[0] != CANCEL)) {
            throw new Zmtp.Violation("neither a subscription nor the end of one");
        }
        String prefix = new String(frame, 1, frame.length - 1, StandardCharsets.ISO_8859_1);
        synchronized (this) {
            if (frame[0] == CANCEL) {
                prefixes.remove(prefix);
            } else if (prefixes.size() < bounds.subscriptions() || prefixes.contains(prefix)) {
                prefixes.add(prefix);
            } else {
                throw new Zmtp.Violation("more than " + bounds.subscriptions() + " subscriptions");
            }
            return true;
        }
    }

    @Override
    public boolean isGreeted() {
        return true;
    }

    /** The peer has taken nothing for so long that it is as good as gone. */
    @Override
    public boolean isOver() {
        return sending && ticker.nanos() - sendingSince > bounds.stalled().toNanos();
    }

    @Override
    public void left() {
        synchronized (this) {
            if (left) {
                return;
            }
            left = true;
            waiting.clear();
            bytes = 0;
            notifyAll();
        }
        whenLeft.accept(this);
    }

    void end() {
        link.end();
    }

    private void write() {
        try {
            for (Optional<Publication> next = next(); next.isPresent(); next = next()) {
                link.send(next.get().frames());
                sending = false;
            }
        } catch (IOException | InterruptedException e) {
            // The thread that reads finds the connection closed.
        } finally {
            sending = false;
            link.end();
        }
    }

    /** The next message, once there is one; empty at the end. */
    private synchronized Optional<Publication> next() throws InterruptedException {
        while (waiting.isEmpty() && !left) {
            boolean unusedTime = Deadline.after(ticker, NAP).awaitNotify(this);
        }
        if (left) {
            return Optional.empty();
        }
        Publication message = waiting.remove();
        bytes -= message.weight();
        sendingSince = ticker.nanos();
        sending = true;
        return Optional.of(message);
    }
}
