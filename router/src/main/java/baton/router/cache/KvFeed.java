package baton.router.cache;

import baton.kv.Bursts;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.events.KvEventReader;
import baton.messages.events.ReceivedKvEvent;
import baton.messages.zeromq.ZeroMqSubscription;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One publisher's events, applied to its table. */
final class KvFeed implements ZeroMqSubscription.Listener, AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(KvFeed.class);
    private static final Duration BETWEEN_LINES = Duration.ofMinutes(1);
    private static final int MOST_LORAS = 256;

    private final ZeroMqSubscription.Source source;
    private final BlockIndex table;
    private final KvFeedCounts counts;
    private final Bursts malformed;
    private final Set<String> loras = ConcurrentHashMap.newKeySet();
    private final ZeroMqSubscription subscription;
    private volatile boolean live;

    @SuppressWarnings("this-escape")
    KvFeed(
            ZeroMqSubscription.Source source,
            PeerAccess access,
            IndexBudget budget,
            KvFeedCounts counts,
            Ticker ticker) {
        this.source = source;
        this.table = new BlockIndex(budget);
        this.counts = counts;
        this.malformed = new Bursts(1, BETWEEN_LINES, ticker);
        this.subscription = ZeroMqSubscription.start(source, access, this, ticker);
    }

    /** Whether the table equals the publisher's blocks. */
    boolean isLive() {
        return live;
    }

    BlockIndex table() {
        return table;
    }

    boolean hasLora(String name) {
        return loras.contains(name);
    }

    @Override
    public void message(long number, byte[] payload) {
        counts.batches().increment();
        try {
            for (ReceivedKvEvent event : KvEventReader.read(payload)) {
                if (event instanceof ReceivedKvEvent.Stored stored
                        && !stored.lora().isEmpty()
                        && loras.size() < MOST_LORAS) {
                    loras.add(stored.lora());
                }
                table.apply(event);
            }
        } catch (InvalidFieldException e) {
            counts.malformed().increment();
            // Its changes are not known.
            table.clear();
            malformed.event(more -> log.warn("{}: message {}: {}{}", source.endpoint(), number, e.getMessage(), more));
        }
    }

    @Override
    public void lost(String why) {
        counts.lost().increment();
        table.clear();
    }

    @Override
    public void replayed(int messages) {
        counts.replayed().add(messages);
    }

    @Override
    public void connected(boolean now) {
        live = now;
    }

    @Override
    public void close() {
        live = false;
        subscription.close();
        table.clear();
    }
}
