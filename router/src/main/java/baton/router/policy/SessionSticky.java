package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;

/**
 * All requests of a session to the same instance, by rendezvous hashing: each instance that comes or goes moves only its own share of the
 * sessions. Requests without a session are sent to the {@link LeastLoaded} one.
 */
final class SessionSticky implements InstanceChooser {
    static final String NAME = "session";

    private final LeastLoaded without = new LeastLoaded();

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        return request.session()
                .map(session -> Choice.of(of(usable, session), Choice.Why.SESSION))
                .orElseGet(() -> without.choose(usable, request));
    }

    private static Instance of(List<Instance> usable, String session) {
        Instance best = usable.getFirst();
        double most = score(best, session);
        for (Instance other : usable) {
            double score = score(other, session);
            if (score > most) {
                best = other;
                most = score;
            }
        }
        return best;
    }

    /** Weighted rendezvous hashing: the highest of all is of an instance as often as its share says. */
    private static double score(Instance instance, String session) {
        // Over 0 and under 1.
        double uniform = ((hash(instance, session) >>> 11) + 0.5) * 0x1p-53;
        return -instance.share() / Math.log(uniform);
    }

    /** The same in every router, so that several in front of the same instances agree. */
    private static long hash(Instance instance, String session) {
        return PromptPrefix.mix(digest(session) ^ PromptPrefix.mix(digest(instance.url())));
    }

    private static long digest(String text) {
        long digest = text.length();
        for (int i = 0; i < text.length(); i++) {
            digest = PromptPrefix.mix(digest ^ text.charAt(i));
        }
        return digest;
    }
}
