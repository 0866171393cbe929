package baton.router.policy;

import baton.kv.ConfigException;
import baton.router.cache.HeldBlocks;
import baton.router.upstream.Instance;
import java.util.List;

/** Chooses one of several usable instances of a role. Any thread; must not block. */
public interface InstanceChooser {
    /** Values of {@code --policy}. */
    List<String> NAMES =
            List.of(InTurn.NAME, LeastLoaded.NAME, PowerOfTwoChoices.NAME, SessionSticky.NAME, PrefixAware.NAME);

    /** @param usable at least one, in the order in which they became known */
    Choice choose(List<Instance> usable, RoutingRequest request);

    /** Whether it looks at {@link PromptPrefix#chunks}. */
    default boolean needsPrefix() {
        return false;
    }

    /** The request is sent to this instance. */
    default void sent(Instance instance, RoutingRequest request) {}

    /** @throws ConfigException if there is none of that name */
    static void requireName(String field, String name) {
        if (!NAMES.contains(name)) {
            throw ConfigException.unsupported(field, name, String.join(", ", NAMES));
        }
    }

    /**
     * @param recorded entries of a {@link PrefixRecord}
     * @param held blocks known by events
     * @throws ConfigException if there is none of that name
     */
    static InstanceChooser named(String field, String name, int recorded, HeldBlocks held) {
        return switch (name) {
            case InTurn.NAME -> new InTurn();
            case LeastLoaded.NAME -> new LeastLoaded();
            case PowerOfTwoChoices.NAME -> new PowerOfTwoChoices();
            case SessionSticky.NAME -> new SessionSticky();
            case PrefixAware.NAME -> new PrefixAware(new PrefixRecord(recorded), held);
            default -> throw ConfigException.unsupported(field, name, String.join(", ", NAMES));
        };
    }
}
