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
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;

/**
 * One of {@code secondary_tiers}.
 *
 * @param opener of its store
 * @param events {@code enable_kv_events}: whether it publishes events of stored values
 * @param backpressure empty if {@code backpressure_cls} is {@code null} there
 */
record TierSettings(Opener opener, boolean events, Optional<Backpressure.Settings> backpressure) {
    /** Types of tiers. A new one is one more. */
    private static final List<Type> TYPES = List.of(
            new Type("fs", false, FileStoreSettings.SETTINGS, fields -> {
                FileStoreSettings settings = FileStoreSettings.of(fields);
                return (format, ticker) -> FileBlockStore.open(settings, format, ticker);
            }),
            new Type("redis", true, RedisSettings.SETTINGS, fields -> {
                RedisSettings settings = RedisSettings.of(fields);
                return (format, ticker) -> RedisBlockStore.open(format, settings, ticker);
            }),
            new Type("lm", true, LmSettings.SETTINGS, fields -> {
                LmSettings settings = LmSettings.of(fields);
                return (format, ticker) -> LmBlockStore.open(format, settings, ticker);
            }));

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
            Setting.of(EVENTS, false, "Whether KV events report the stored values."),
            Setting.absent(BACKPRESSURE, "that of all tiers", "Of this tier, field by field."));

    /**
     * @param remote whether it is behind a network, if {@code locality} does not say
     * @param settings that {@code reader} reads, beside those of every tier
     */
    private record Type(String name, boolean remote, List<Setting> settings, Function<JsonFields, Opener> reader) {}

    /** Opens a store. */
    @FunctionalInterface
    interface Opener {
        BlockStore open(StoreFormat format, Ticker ticker);
    }

    /** The settings of all types, for a list of tiers at {@code path}. */
    static List<Setting> settings(String path) {
        List<Setting> all = new ArrayList<>(Setting.within(path + "[]", COMMON));
        TYPES.forEach(type -> all.addAll(Setting.within(path + "[" + type.name + "]", type.settings)));
        return all;
    }

    /** @param parent {@code backpressure} of all tiers, of which a tier's own replaces field by field */
    static TierSettings of(JsonFields given, Optional<JsonFields> parent) {
        JsonFields tier = given.withDefaults(COMMON);
        String names = String.join(", ", TYPES.stream().map(Type::name).toList());
        String name = tier.string(TYPE)
                .orElseThrow(() -> new ConfigException(tier.field(TYPE), "is missing, must be one of " + names));
        Type type = ConfigException.choose(tier.field(TYPE), name, TYPES.toArray(Type[]::new), Type::name);
        tier.requireKnown(Setting.join(COMMON, type.settings));
        // Its errors are reported before the model is loaded.
        Opener opener = type.reader.apply(tier);
        String locality = tier.string(LOCALITY).orElse(type.remote ? "REMOTE" : "LOCAL");
        boolean remote = switch (locality.toUpperCase(Locale.ROOT)) {
            case "LOCAL" -> false;
            case "REMOTE" -> true;
            default -> throw ConfigException.unsupported(tier.field(LOCALITY), locality, "LOCAL, REMOTE");
        };
        return new TierSettings(
                opener,
                tier.bool(EVENTS).orElseThrow(),
                BackpressureSettings.of(parent, tier.object(BACKPRESSURE), remote, !type.remote));
    }

    /** Where the tier keeps values of a format. */
    StoreOpener.Closed store(StoreFormat format) {
        return new StoreOpener.Closed() {
            @Override
            public StoreFormat format() {
                return format;
            }

            @Override
            public BlockStore open(Ticker ticker) {
                return opener.open(format, ticker);
            }
        };
    }
}
