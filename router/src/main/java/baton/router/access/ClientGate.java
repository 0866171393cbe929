package baton.router.access;

import baton.kv.Ticker;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Lets the requests of known keys enter, within their limits. Any thread. */
public final class ClientGate {
    private static final String SCHEME = "Bearer ";

    private final Ticker ticker;
    /** The uses by key name: an entry that changes, or comes back, keeps its counts. */
    private final Map<String, KeyUse> uses = new ConcurrentHashMap<>();

    private volatile ClientKeys keys;

    public ClientGate(ClientKeys keys, Ticker ticker) {
        this.keys = keys;
        this.ticker = ticker;
    }

    /** Other keys and limits from now on. Requests in flight go on. */
    public void replace(ClientKeys by) {
        keys = by;
        Set<String> names = by.entries().stream().map(ClientKeys.Entry::name).collect(Collectors.toSet());
        uses.entrySet()
                .removeIf(each ->
                        !names.contains(each.getKey()) && each.getValue().inFlight() == 0);
    }

    /** Requests in flight with the key of that name. */
    public int inFlight(String name) {
        KeyUse use = uses.get(name);
        return use == null ? 0 : use.inFlight();
    }

    /**
     * The name of a request's key; counts nothing.
     *
     * @param authorization the values of all headers of that name
     */
    public Optional<String> identify(List<String> authorization) {
        return bearer(authorization).flatMap(keys::find).map(ClientKeys.Entry::name);
    }

    /**
     * Lets a request enter or says why not.
     *
     * @param authorization the values of all headers of that name
     */
    public ClientAdmission enter(List<String> authorization) {
        Optional<String> key = bearer(authorization);
        if (key.isEmpty()) {
            return new ClientAdmission.Unknown(
                    authorization.isEmpty()
                            ? "no API key: the header Authorization must be 'Bearer' and a key"
                            : "the header Authorization must be 'Bearer' and one API key");
        }
        return keys.find(key.get())
                .map(this::enter)
                .orElseGet(() -> new ClientAdmission.Unknown("the API key in the header Authorization is not known"));
    }

    private ClientAdmission enter(ClientKeys.Entry entry) {
        KeyUse use = uses.computeIfAbsent(entry.name(), _ -> new KeyUse());
        int most = entry.limits().inFlight().orElse(Integer.MAX_VALUE);
        if (!use.begin(most)) {
            return new ClientAdmission.Limited(
                    entry.name(),
                    "the API key '" + entry.name() + "' has " + most + " requests in flight, the most allowed",
                    1);
        }
        OptionalInt tokens = entry.limits().tokensPerMinute();
        if (tokens.isPresent()) {
            OptionalLong wait = use.waitForTokens(tokens.getAsInt(), ticker.nanos());
            if (wait.isPresent()) {
                use.end();
                return new ClientAdmission.Limited(
                        entry.name(),
                        "the API key '" + entry.name() + "' has taken the " + tokens.getAsInt() + " tokens of a minute",
                        seconds(wait.getAsLong()));
            }
        }
        if (entry.limits().perMinute().isPresent()) {
            int perMinute = entry.limits().perMinute().getAsInt();
            OptionalLong wait = use.take(perMinute, ticker.nanos());
            if (wait.isPresent()) {
                use.end();
                return new ClientAdmission.Limited(
                        entry.name(),
                        "the API key '" + entry.name() + "' may send " + perMinute + " requests a minute",
                        seconds(wait.getAsLong()));
            }
        }
        return new ClientAdmission.Admitted(new ClientPass(
                Optional.of(entry.name()),
                use::end,
                tokens.isPresent() ? Optional.of(use::took) : Optional.empty(),
                entry.salt()));
    }

    private static long seconds(long nanos) {
        return Math.max(1, TimeUnit.NANOSECONDS.toSeconds(nanos + 999_999_999));
    }

    private static Optional<String> bearer(List<String> authorization) {
        if (authorization.size() != 1) {
            return Optional.empty();
        }
        String value = authorization.getFirst().strip();
        return value.regionMatches(true, 0, SCHEME, 0, SCHEME.length())
                ? Optional.of(value.substring(SCHEME.length()).strip())
                : Optional.empty();
    }
}
