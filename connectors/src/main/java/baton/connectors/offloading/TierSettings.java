package baton.connectors.offloading;

import baton.connectors.bykey.StoreOpener;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.file.FileBlockStore;
import baton.store.file.FileStoreSettings;
import baton.store.lm.LmBlockStore;
import baton.store.lm.LmSettings;
import baton.store.redis.RedisBlockStore;
import baton.store.redis.RedisSettings;
import baton.store.tiered.Backpressure;
import java.util.List;
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

    /** Settings of every tier. */
    private static final List<Setting> COMMON = List.of(
            Setting.absent(TYPE, "required", "`fs`, `redis` or `lm`."),
            Setting.absent(
                    LOCALITY,
                    "of `fs` `LOCAL`, else `REMOTE`",
                    "Whether it is behind a network, for the defaults of `" + BACKPRESSURE + "`."),
            Setting.of(EVENTS, false, "Whether KV events tell what it stores."),
            Setting.absent(BACKPRESSURE, "that of all tiers", "Of this tier, field by field."));

    /** Of all types, for a list of tiers at {@code path}. */
    static List<Setting> settings(String path) {
        return Setting.join(
                Setting.within(path + "[]", COMMON),
                Setting.within(path + "[" + FS + "]", FileStoreSettings.SETTINGS),
                Setting.within(path + "[" + REDIS + "]", RedisSettings.SETTINGS),
                Setting.within(path + "[" + LM + "]", LmSettings.SETTINGS));
    }

    /** @param parent {@code backpressure} of all tiers, of which a tier's own replaces field by field */
    static TierSettings of(JsonFields given, Optional<JsonFields> parent) {
        JsonFields tier = given.withDefaults(COMMON);
        String type = tier.string(TYPE)
                .orElseThrow(() -> new ConfigException(tier.field(TYPE), "is missing, must be one of fs, redis, lm"));
        if (!TYPES.contains(type)) {
            throw ConfigException.unsupported(tier.field(TYPE), type, "fs, redis, lm");
        }
        requireKnown(tier, type);
        // Their errors are reported before the model is loaded.
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
                tier.bool(EVENTS).orElseThrow(),
                BackpressureSettings.of(parent, tier.object(BACKPRESSURE), remote));
    }

    /** Where the tier keeps values of a format. */
    StoreOpener.Closed store(StoreFormat format) {
        return new Store(type, fields, format);
    }

    private record Store(String type, JsonFields fields, StoreFormat format) implements StoreOpener.Closed {
        @Override
        public BlockStore open(Ticker ticker) {
            return switch (type) {
                case FS -> FileBlockStore.open(FileStoreSettings.of(fields), format, ticker);
                case LM -> LmBlockStore.open(format, LmSettings.of(fields), ticker);
                default -> RedisBlockStore.open(format, RedisSettings.of(fields), ticker);
            };
        }
    }

    private static void requireKnown(JsonFields tier, String type) {
        Set<String> known = new TreeSet<>(Setting.names(COMMON));
        known.addAll(Setting.names(
                switch (type) {
                    case FS -> FileStoreSettings.SETTINGS;
                    case LM -> LmSettings.SETTINGS;
                    default -> RedisSettings.SETTINGS;
                }));
        for (String name : tier.names()) {
            if (!known.contains(name)) {
                throw new ConfigException(
                        tier.field(name), "is not known; a tier of type " + type + " has " + String.join(", ", known));
            }
        }
    }
}
