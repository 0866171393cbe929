package baton.connectors.onesided;

import baton.kv.connector.KvRequest;
import java.time.Duration;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Peers of which verify_kv has found wrong blocks: after several wrong loads a peer is left out for a while, for requests with the same
 * salt, as a client may send references to wrong blocks. Used by one thread.
 */
public final class SuspectPeers {
    private static final Logger log = LoggerFactory.getLogger(SuspectPeers.class);

    /** Wrong loads after which a peer is left out, each within {@link #SPAN} of the one before. */
    public static final int WRONG_LOADS = 3;

    public static final Duration SPAN = Duration.ofMinutes(10);

    /** More are not remembered: salts may be clients' own. */
    static final int MOST = 1000;

    private final Map<Suspicion, Suspect> suspects = new HashMap<>();

    private record Suspicion(String peer, Optional<String> salt) {}

    /** @param last time of the last wrong load, in nanoseconds */
    private record Suspect(int wrongLoads, long last) {
        boolean isPast(long now) {
            return now - last > SPAN.toNanos();
        }
    }

    /**
     * Blocks of a peer were wrong.
     *
     * @param peer engine id or address
     * @param now in nanoseconds
     */
    public void add(String peer, KvRequest request, long now) {
        suspects.values().removeIf(each -> each.isPast(now));
        Suspicion key = new Suspicion(peer, request.cacheSalt());
        if (suspects.size() >= MOST && !suspects.containsKey(key)) {
            suspects.remove(Collections.min(
                            suspects.entrySet(), Comparator.comparingLong(each -> each.getValue().last - now))
                    .getKey());
        }
        Suspect suspect =
                suspects.merge(key, new Suspect(1, now), (known, _) -> new Suspect(known.wrongLoads + 1, now));
        if (suspect.wrongLoads == WRONG_LOADS) {
            log.warn(
                    "{} loads from {} were wrong: nothing is loaded from it until {} s after the last one",
                    WRONG_LOADS,
                    peer,
                    SPAN.toSeconds());
        }
    }

    /** Whether nothing is to be loaded from a peer for a request: until {@link #SPAN} after the last wrong load. */
    public boolean contains(String peer, KvRequest request, long now) {
        Suspect suspect = suspects.get(new Suspicion(peer, request.cacheSalt()));
        return suspect != null && suspect.wrongLoads >= WRONG_LOADS && !suspect.isPast(now);
    }
}
