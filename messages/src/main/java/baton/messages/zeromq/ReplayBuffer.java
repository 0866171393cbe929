package baton.messages.zeromq;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.Optional;
import java.util.TreeMap;

/** The last messages by their numbers, bounded in number and bytes; the oldest are dropped. Thread-safe. */
final class ReplayBuffer {
    private final int most;
    private final long mostBytes;

    @GuardedBy("this")
    private final TreeMap<Long, Publication> messages = new TreeMap<>(Long::compareUnsigned);

    @GuardedBy("this")
    private long bytes;

    ReplayBuffer(int most, long mostBytes) {
        this.most = most;
        this.mostBytes = mostBytes;
    }

    synchronized void add(Publication message) {
        messages.put(message.sequence(), message);
        bytes += message.weight();
        while (messages.size() > most || bytes > mostBytes) {
            bytes -= messages.pollFirstEntry().getValue().weight();
        }
    }

    /** The message with the lowest number that is {@code from} or greater, unsigned. */
    synchronized Optional<Publication> first(long from) {
        return Optional.ofNullable(messages.ceilingEntry(from)).map(entry -> entry.getValue());
    }

    /** The highest number. */
    synchronized Optional<Long> last() {
        return messages.isEmpty() ? Optional.empty() : Optional.of(messages.lastKey());
    }
}
