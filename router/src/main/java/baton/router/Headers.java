package baton.router;

import io.vertx.core.MultiMap;
import io.vertx.core.http.HttpHeaders;
import java.util.HashSet;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;

/** Which headers pass the router. */
final class Headers {
    static final String REQUEST_ID = "X-Request-Id";
    static final String PREFILL = "X-Baton-Prefill";
    static final String DECODE = "X-Baton-Decode";
    /** The {@code X-Request-Id} of the legs where it is not the client's. */
    static final String HANDOFF_ID = "X-Baton-Handoff-Id";
    /** How many routers a request has passed. */
    static final String HOPS = "X-Baton-Hops";

    /** More routers, one behind the other, are a cycle: each multiplies a request's legs. */
    static final int MOST_HOPS = 3;

    /** Why the decode instance computed the prompt itself. */
    static final String LOCAL_PREFILL = "X-Baton-Local-Prefill";

    /** RFC 9110, 7.6.1, and what other proxies have learnt to drop. */
    private static final Set<String> HOP_BY_HOP = Set.of(
            "connection",
            "proxy-connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "http2-settings");

    /** Belong to the client's connection or body; compression would hide the answer from the router. */
    private static final Set<String> OF_THE_REQUEST =
            Set.of("host", "content-length", "expect", "accept-encoding", "x-request-id");

    /** Nothing that Baton's server would refuse; brackets are there for the IPv6 addresses that some connectors' ids carry. */
    private static final Pattern SANE_ID = Pattern.compile("[A-Za-z0-9._:\\[\\]@+=~-]{1,256}");

    private Headers() {}

    /** A client's headers as an instance gets them; an API key of the router's stands in for an absent {@code Authorization}. */
    static MultiMap toInstance(MultiMap client, Optional<String> apiKey) {
        MultiMap headers = MultiMap.caseInsensitiveMultiMap();
        Set<String> named = namedByConnection(client);
        client.forEach((name, value) -> {
            String key = name.toLowerCase(Locale.ROOT);
            if (!HOP_BY_HOP.contains(key) && !OF_THE_REQUEST.contains(key) && !named.contains(key)) {
                headers.add(name, value);
            }
        });
        headers.set(HOPS, Integer.toString(hops(client) + 1));
        if (!headers.contains(HttpHeaders.AUTHORIZATION)) {
            apiKey.ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
        }
        return headers;
    }

    /** How many routers the request has passed before this one; what is no number was not written by a router. */
    static int hops(MultiMap client) {
        int most = 0;
        for (String value : client.getAll(HOPS)) {
            if (value.matches("[0-9]{1,9}")) {
                most = Math.max(most, Integer.parseInt(value));
            }
        }
        return most;
    }

    /** An instance's headers as the client gets them. */
    static void toClient(MultiMap instance, MultiMap client) {
        Set<String> named = namedByConnection(instance);
        instance.forEach((name, value) -> {
            String key = name.toLowerCase(Locale.ROOT);
            if (!HOP_BY_HOP.contains(key) && !named.contains(key)) {
                client.add(name, value);
            }
        });
    }

    /** The client's request id, or a new one where it gave none that is safe in headers, logs and file names. */
    static String requestId(MultiMap client) {
        String given = client.get(REQUEST_ID);
        return given != null && SANE_ID.matcher(given).matches()
                ? given
                : UUID.randomUUID().toString();
    }

    private static Set<String> namedByConnection(MultiMap headers) {
        if (!headers.contains(HttpHeaders.CONNECTION)) {
            return Set.of();
        }
        Set<String> named = new HashSet<>();
        for (String value : headers.getAll(HttpHeaders.CONNECTION)) {
            for (String token : value.split(",")) {
                named.add(token.strip().toLowerCase(Locale.ROOT));
            }
        }
        return named;
    }
}
