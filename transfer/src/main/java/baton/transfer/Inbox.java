package baton.transfer;

import baton.transfer.TransferAgent.Notification;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;

/** Notifications that have arrived and were not taken yet, up to a number of bytes. */
public final class Inbox {
    /** A message costs more than its bytes. */
    private static final int OVERHEAD = 256;

    private final long most;

    @GuardedBy("this")
    private final Queue<Notification> messages = new ArrayDeque<>();

    @GuardedBy("this")
    private long bytes;

    /** @param most bytes that may wait */
    public Inbox(long most) {
        this.most = most;
    }

    /** @return false if too much waits already */
    public synchronized boolean add(Notification message) {
        long size = (long) message.message().length + OVERHEAD;
        if (bytes + size > most) {
            return false;
        }
        bytes += size;
        return messages.add(message);
    }

    /** All that wait, in the order in which they came. */
    public synchronized List<Notification> takeAll() {
        List<Notification> all = List.copyOf(messages);
        messages.clear();
        bytes = 0;
        return all;
    }
}
