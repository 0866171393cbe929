package baton.router.access;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Sha256;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * The keys of clients, of which only SHA-256 digests are known:
 * {@code {"keys": [{"name": "team-a", "sha256": "64 hex digits", "max_requests_in_flight": 16, "requests_per_minute": 600, "tokens_per_minute": 100000, "tenant": "a"}, ...]}}.
 */
public final class ClientKeys {
    /** Each request's key is compared with all. */
    public static final int MOST_KEYS = 1000;

    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9._-]{1,64}");
    private static final Pattern DIGEST = Pattern.compile("[0-9a-fA-F]{64}");
    private static final Set<String> FIELDS =
            Set.of("name", "sha256", "max_requests_in_flight", "requests_per_minute", "tokens_per_minute", "tenant");

    private final List<Entry> entries;

    /** A limit that is absent does not bound. */
    record Limits(OptionalInt inFlight, OptionalInt perMinute, OptionalInt tokensPerMinute) {}

    /**
     * One key.
     *
     * @param salt of its requests; empty if they share cached blocks with all that have no salt
     */
    record Entry(String name, Limits limits, Digest digest, Optional<CacheSalt> salt) {}

    /** A SHA-256 digest. */
    static final class Digest {
        private final byte[] bytes;

        private Digest(byte[] bytes) {
            this.bytes = bytes;
        }

        static Digest of(String key) {
            return new Digest(Sha256.of(key));
        }

        /** Takes the same time whatever differs. */
        boolean is(Digest other) {
            return MessageDigest.isEqual(bytes, other.bytes);
        }
    }

    private ClientKeys(List<Entry> entries) {
        this.entries = List.copyOf(entries);
    }

    /** @throws ConfigException naming the field that cannot be used; a digest is not repeated in it */
    public static ClientKeys parse(String json) {
        JsonFields root = JsonFields.parse("", json);
        requireKnown(root, Set.of("keys"));
        List<JsonFields> given =
                root.objects("keys").orElseThrow(() -> new ConfigException("keys", "is missing, must be an array"));
        if (given.size() > MOST_KEYS) {
            throw new ConfigException("keys", "has " + given.size() + " entries, must have at most " + MOST_KEYS);
        }
        List<Entry> entries = new ArrayList<>();
        Set<String> names = new HashSet<>();
        for (JsonFields each : given) {
            Entry entry = entry(each);
            if (!names.add(entry.name)) {
                throw new ConfigException(each.field("name"), "'" + entry.name + "' is given twice");
            }
            if (entries.stream().anyMatch(other -> other.digest.is(entry.digest))) {
                throw new ConfigException(each.field("sha256"), "is that of another name too");
            }
            entries.add(entry);
        }
        return new ClientKeys(entries);
    }

    private static Entry entry(JsonFields fields) {
        requireKnown(fields, FIELDS);
        String name = fields.string("name").orElse("");
        if (!NAME.matcher(name).matches()) {
            throw ConfigException.unsupported(
                    fields.field("name"), name, "1 to 64 letters, digits, dots, hyphens and underscores");
        }
        String digest = fields.string("sha256").orElse("");
        if (!DIGEST.matcher(digest).matches()) {
            throw new ConfigException(fields.field("sha256"), "must be 64 hexadecimal digits");
        }
        Optional<String> tenant = fields.string("tenant");
        if (tenant.filter(each -> !each.isEmpty() && !NAME.matcher(each).matches())
                .isPresent()) {
            throw ConfigException.unsupported(
                    fields.field("tenant"),
                    tenant.get(),
                    "1 to 64 letters, digits, dots, hyphens and underscores, or empty for a cache shared with all");
        }
        // Without a tenant's name, of the digest: not even instances' other clients can guess it.
        String scope = tenant.map(each -> "tenant " + each).orElse("key " + digest.toLowerCase(Locale.ROOT));
        return new Entry(
                name,
                new Limits(
                        limit(fields, "max_requests_in_flight"),
                        limit(fields, "requests_per_minute"),
                        limit(fields, "tokens_per_minute")),
                new Digest(HexFormat.of().parseHex(digest)),
                tenant.filter(String::isEmpty).isPresent() ? Optional.empty() : Optional.of(new CacheSalt(scope)));
    }

    private static OptionalInt limit(JsonFields fields, String name) {
        return fields.integerAtLeast(name, 1).map(OptionalInt::of).orElseGet(OptionalInt::empty);
    }

    private static void requireKnown(JsonFields fields, Set<String> known) {
        for (String name : fields.names()) {
            if (!known.contains(name)) {
                throw new ConfigException(
                        fields.field(name),
                        "is unknown; there are "
                                + String.join(", ", known.stream().sorted().toList()));
            }
        }
    }

    List<Entry> entries() {
        return entries;
    }

    /** The entry of a key. Compares it with all, so that the time tells nothing. */
    Optional<Entry> find(String key) {
        Digest digest = Digest.of(key);
        Optional<Entry> found = Optional.empty();
        for (Entry entry : entries) {
            if (entry.digest.is(digest)) {
                found = Optional.of(entry);
            }
        }
        return found;
    }
}
