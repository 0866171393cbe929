package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.transfer.TransferException;
import baton.transfer.mooncake.HandshakeMessage.UnreachableException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Optional;
import java.util.Queue;
import java.util.function.Consumer;

/** Notifications to a peer, in order, each after the answer to the one before. A thread sends them while there are any. */
final class NotificationQueue {
    /** How long a peer may refuse a message, because it has not taken those before. */
    private static final Duration PATIENCE = Duration.ofSeconds(10);

    private static final int OVERHEAD = 256;

    private final Sender sender;
    private final Consumer<String> failed;
    private final long most;
    private final Ticker ticker;

    @GuardedBy("this")
    private final Queue<byte[]> messages = new ArrayDeque<>();

    @GuardedBy("this")
    private long bytes;

    @GuardedBy("this")
    private boolean sending;

    @GuardedBy("this")
    private boolean closed;

    /** Sends one message. */
    @FunctionalInterface
    interface Sender {
        /**
         * @return false if the peer refused it
         * @throws UnreachableException if it has not been sent
         * @throws IOException if it is unknown whether the peer has received it
         */
        boolean send(byte[] message, Deadline deadline) throws IOException;
    }

    /**
     * @param failed told why, when a message could not be sent; after it nothing is sent any more
     * @param most bytes that may wait
     */
    NotificationQueue(Sender sender, Consumer<String> failed, long most, Ticker ticker) {
        this.sender = sender;
        this.failed = failed;
        this.most = most;
        this.ticker = ticker;
    }

    /** @throws TransferException if too much waits, or nothing is sent any more */
    synchronized void add(byte[] message) throws TransferException {
        if (closed) {
            throw new TransferException("the peer is gone");
        }
        if (bytes + message.length + OVERHEAD > most) {
            throw new TransferException("%d bytes wait to be sent, no more are allowed".formatted(bytes));
        }
        bytes += message.length + OVERHEAD;
        messages.add(message);
        if (!sending) {
            sending = true;
            Thread.ofVirtual().name("mooncake-notify").start(this::sendAll);
        }
    }

    synchronized void close() {
        closed = true;
        messages.clear();
    }

    private synchronized Optional<byte[]> next() {
        Optional<byte[]> message = Optional.ofNullable(messages.poll());
        sending = message.isPresent();
        return message;
    }

    private synchronized void sent(byte[] message) {
        bytes -= message.length + OVERHEAD;
    }

    private void sendAll() {
        for (Optional<byte[]> message = next(); message.isPresent(); message = next()) {
            try {
                sendOne(message.get());
                sent(message.get());
            } catch (IOException e) {
                close();
                failed.accept("did not take a notification: " + e.getMessage());
                return;
            }
        }
    }

    private void sendOne(byte[] message) throws IOException {
        Deadline deadline = Deadline.after(ticker, PATIENCE);
        while (true) {
            try {
                if (sender.send(message, deadline)) {
                    return;
                }
                if (deadline.isOver()) {
                    throw new IOException("it refused it for " + deadline);
                }
            } catch (UnreachableException e) {
                if (deadline.isOver() || isClosed()) {
                    throw e;
                }
            }
            DataServer.pause();
        }
    }

    private synchronized boolean isClosed() {
        return closed;
    }
}
