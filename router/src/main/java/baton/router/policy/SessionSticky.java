package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;

/**
 * All requests of a session to the same instance, by rendezvous hashing: each instance that comes or goes moves only its own share of the
 * sessions. Requests without a session go to the {@link LeastLoaded} one.
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
        long most = weight(best, session);
        for (Instance other : usable) {
            long weight = weight(other, session);
            if (weight > most) {
                best = other;
                most = weight;
            }
        }
        return best;
    }

    /** The same in every router, so that several in front of the same instances agree. */
    private static long weight(Instance instance, String session) {
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
