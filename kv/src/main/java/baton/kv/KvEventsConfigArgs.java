package baton.kv;

import java.util.List;
import java.util.Optional;

/**
 * The command-line forms of a {@link KvEventsConfig}: {@code --kv-events-config '{"enable_kv_cache_events": true}'}, and {@code
 * --kv-events-config.topic kv} for one field.
 *
 * @param config the configuration, if any of these options was given
 * @param rest all other arguments, in order
 */
public record KvEventsConfigArgs(Optional<KvEventsConfig> config, List<String> rest) {
    public KvEventsConfigArgs {
        rest = List.copyOf(rest);
    }

    /**
     * Takes the options of KV events out of a command line. Arguments after {@code --} are left alone.
     *
     * @throws ConfigException if an option lacks its value, or the configuration is wrong
     */
    public static KvEventsConfigArgs parse(List<String> args) {
        JsonObjectArgs parsed = JsonObjectArgs.parse("--kv-events-config", KvEventsConfig::isText, args);
        return new KvEventsConfigArgs(
                parsed.object().map(object -> KvEventsConfig.fromJson(JsonFields.of(KvEventsConfig.FIELD, object))),
                parsed.rest());
    }
}
