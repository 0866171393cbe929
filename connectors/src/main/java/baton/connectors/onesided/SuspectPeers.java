package baton.connectors.onesided;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Peers of which verify_kv has found wrong blocks: after several wrong loads a peer is left out for a while. Used by one thread. */
public final class SuspectPeers {
    private static final Logger log = LoggerFactory.getLogger(SuspectPeers.class);

    /** Wrong loads after which a peer is left out, each within {@link #SPAN} of the one before. */
    public static final int WRONG_LOADS = 3;

    public static final Duration SPAN = Duration.ofMinutes(10);

    private final Map<String, Suspect> suspects = new HashMap<>();

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
    public void add(String peer, long now) {
        suspects.values().removeIf(each -> each.isPast(now));
        Suspect suspect =
                suspects.merge(peer, new Suspect(1, now), (known, _) -> new Suspect(known.wrongLoads + 1, now));
        if (suspect.wrongLoads == WRONG_LOADS) {
            log.warn(
                    "{} loads from {} were wrong: nothing is loaded from it until {} s after the last one",
                    WRONG_LOADS,
                    peer,
                    SPAN.toSeconds());
        }
    }

    /** Whether nothing is to be loaded from a peer: until {@link #SPAN} after its last wrong load. */
    public boolean contains(String peer, long now) {
        Suspect suspect = suspects.get(peer);
        return suspect != null && suspect.wrongLoads >= WRONG_LOADS && !suspect.isPast(now);
    }
}
