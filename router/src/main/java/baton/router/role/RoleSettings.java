package baton.router.role;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.time.Duration;
import java.util.Locale;

/**
 * How instances change their roles and give streams to each other.
 *
 * @param proof from the first request to an instance in its new role to the first one that it has served; a change without that is taken
 *     back
 * @param mode of the role controller
 * @param window of time after which the controller looks at the streams; it judges several at once where there are few streams
 * @param balancesStreams whether streams move from decode instances with full KV caches to others
 */
public record RoleSettings(Duration proof, Mode mode, Duration window, boolean balancesStreams) {
    public static final RoleSettings DEFAULT =
            new RoleSettings(Duration.ofSeconds(30), Mode.OFF, Duration.ofSeconds(1), false);

    /** Whether the router changes roles by itself. */
    public enum Mode {
        OFF,
        /** The router only logs the change. */
        DRY_RUN,
        ON;

        /** @throws ConfigException if there is no such mode */
        public static Mode named(String name) {
            return ConfigException.choose("role controller", name, values(), Mode::label);
        }

        private String label() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    /** @throws ConfigException if a time is out of range */
    public RoleSettings {
        Require.atMost("role proof", proof, Duration.ofHours(1));
        Require.atMost("role window", window, Duration.ofHours(1));
    }
}
