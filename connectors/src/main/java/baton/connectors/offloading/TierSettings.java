package baton.connectors.offloading;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.store.file.FileStoreSettings;
import baton.store.lm.LmSettings;
import baton.store.redis.RedisSettings;
import baton.store.tiered.Backpressure;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

/**
 * One of {@code secondary_tiers}.
 *
 * @param type {@code fs}, {@code redis} or {@code lm}
 * @param fields all its settings, for the store
 * @param remote {@code locality}: whether it is behind a network
 * @param events {@code enable_kv_events}: whether it tells what it stores
 * @param backpressure empty if {@code backpressure_cls} is {@code null} there
 */
record TierSettings(
        String type, JsonFields fields, boolean remote, boolean events, Optional<Backpressure.Settings> backpressure) {
    static final String FS = "fs";
    static final String REDIS = "redis";
    static final String LM = "lm";
    private static final Set<String> TYPES = Set.of(FS, REDIS, LM);

    private static final String TYPE = "type";
    private static final String LOCALITY = "locality";
    private static final String EVENTS = "enable_kv_events";
    static final String BACKPRESSURE = "backpressure";

    /** Names that every tier has. */
    private static final Set<String> NAMES = Set.of(TYPE, LOCALITY, EVENTS, BACKPRESSURE);

    /** @param parent {@code backpressure} of all tiers, of which a tier's own replaces field by field */
    static TierSettings of(JsonFields tier, Optional<JsonFields> parent) {
        String type = tier.string(TYPE)
                .orElseThrow(() -> new ConfigException(tier.field(TYPE), "is missing, must be one of fs, redis, lm"));
        if (!TYPES.contains(type)) {
            throw ConfigException.unsupported(tier.field(TYPE), type, "fs, redis, lm");
        }
        requireKnown(tier, type);
        // Their errors are told before the model is loaded.
        switch (type) {
            case FS -> FileStoreSettings.of(tier);
            case LM -> LmSettings.of(tier);
            default -> RedisSettings.of(tier);
        }
        String locality = tier.string(LOCALITY).orElse(type.equals(FS) ? "LOCAL" : "REMOTE");
        boolean remote = switch (locality.toUpperCase(Locale.ROOT)) {
            case "LOCAL" -> false;
            case "REMOTE" -> true;
            default -> throw ConfigException.unsupported(tier.field(LOCALITY), locality, "LOCAL, REMOTE");
        };
        return new TierSettings(
                type,
                tier,
                remote,
                tier.bool(EVENTS).orElse(false),
                BackpressureSettings.of(parent, tier.object(BACKPRESSURE), remote));
    }

    private static void requireKnown(JsonFields tier, String type) {
        Set<String> known = new TreeSet<>(NAMES);
        known.addAll(
                switch (type) {
                    case FS -> FileStoreSettings.NAMES;
                    case LM -> LmSettings.FIELDS;
                    default -> RedisSettings.FIELDS;
                });
        for (String name : tier.names()) {
            if (!known.contains(name)) {
                throw new ConfigException(
                        tier.field(name), "is not known; a tier of type " + type + " has " + String.join(", ", known));
            }
        }
    }
}
