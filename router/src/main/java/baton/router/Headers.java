package baton.router;

import baton.router.flow.P2pFlow;
import io.vertx.core.MultiMap;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpServerRequest;
import java.util.HashSet;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;

/** Which headers pass the router, and the router's own. */
final class Headers {
    static final String REQUEST_ID = "X-Request-Id";
    static final String PREFILL = "X-Baton-Prefill";
    static final String DECODE = "X-Baton-Decode";
    /** The {@code X-Request-Id} of the legs if it is not the client's. */
    static final String HANDOFF_ID = "X-Baton-Handoff-Id";
    /** How many routers a request has passed. */
    static final String HOPS = "X-Baton-Hops";

    /** A request that has passed more routers is in a routing loop, in which each router multiplies its legs. */
    static final int MOST_HOPS = 3;

    /** W3C Trace Context: each leg has one of its own. */
    static final String TRACEPARENT = "traceparent";

    static final String TRACESTATE = "tracestate";

    /** Asks a decode instance for the token ids of a stream beside its text, in comments. */
    static final String TOKEN_IDS = "X-Baton-Token-Ids";

    /** The header of a prefill leg to the decode instance that a stream leaves, which may be stopping. */
    static final String MOVE = "X-Baton-Move";

    /** The header of a prefill leg with the share of the prompt to compute, from its first token on. Other servers compute all of it. */
    static final String PROMPT_SHARE = "X-Baton-Prompt-Share";

    /** The header of an instance that sends token ids: a JSON object that is copied into the continuation of the stream. */
    static final String STREAM = "X-Baton-Stream";

    /** Why the decode instance computed the prompt itself. */
    static final String LOCAL_PREFILL = "X-Baton-Local-Prefill";

    /** RFC 9110, 7.6.1, and further headers that proxies drop by convention. */
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

    /**
     * Headers of the client's connection or body; with compression the router could not read the answer. Whether a web page may use the
     * router is the router's to check: an instance would compare the page's origin with its own address.
     */
    private static final Set<String> OF_THE_REQUEST = Set.of(
            "host",
            "origin",
            "sec-fetch-site",
            "content-length",
            "expect",
            "accept-encoding",
            "x-request-id",
            "x-baton-token-ids",
            "x-baton-move",
            "x-baton-prompt-share",
            "traceparent");

    /** Accepted by Baton's server too; brackets are for the IPv6 addresses in the ids of some connectors. */
    private static final Pattern SANE_ID = Pattern.compile("[A-Za-z0-9._:\\[\\]@+=~-]{1,256}");

    private Headers() {}

    /**
     * A client's headers as an instance gets them; the router's API key replaces an absent {@code Authorization}.
     *
     * @param forRouter whether {@code Authorization} has a key of this router, which instances do not get
     */
    static MultiMap toInstance(MultiMap client, Optional<String> apiKey, boolean forRouter) {
        MultiMap headers = MultiMap.caseInsensitiveMultiMap();
        Set<String> named = namedByConnection(client);
        client.forEach((name, value) -> {
            String key = name.toLowerCase(Locale.ROOT);
            if (!HOP_BY_HOP.contains(key) && !OF_THE_REQUEST.contains(key) && !named.contains(key)) {
                headers.add(name, value);
            }
        });
        if (forRouter) {
            headers.remove(HttpHeaders.AUTHORIZATION);
        }
        headers.set(HOPS, Integer.toString(hops(client) + 1));
        if (!headers.contains(HttpHeaders.AUTHORIZATION)) {
            apiKey.ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
        }
        return headers;
    }

    /** The path and query of a request, also of one with a whole URL for a target: an instance that is a proxy would go there. */
    static String target(HttpServerRequest request) {
        String query = request.query();
        return query == null ? request.path() : request.path() + "?" + query;
    }

    /** Whether a path has a segment {@code .} or {@code ..}, encoded or not: an instance may take it for another path. */
    static boolean climbs(String path) {
        String decoded = path.replaceAll("(?i)%2e", ".").replaceAll("(?i)%2f|%5c|\\\\", "/");
        return ("/" + decoded + "/").contains("/../") || ("/" + decoded + "/").contains("/./");
    }

    /** How many routers the request has passed before this one; a malformed number was not written by a router and counts as zero. */
    static int hops(MultiMap client) {
        int most = 0;
        for (String value : client.getAll(HOPS)) {
            if (value.matches("[0-9]{1,9}")) {
                most = Math.max(most, Integer.parseInt(value));
            }
        }
        return most;
    }

    /** Adds an instance's headers to those that the client gets. */
    static void toClient(MultiMap instance, MultiMap client) {
        Set<String> named = namedByConnection(instance);
        instance.forEach((name, value) -> {
            String key = name.toLowerCase(Locale.ROOT);
            if (!HOP_BY_HOP.contains(key) && !named.contains(key) && !key.equals("x-baton-stream")) {
                client.add(name, value);
            }
        });
    }

    /**
     * The client's request id, or a new one if it is absent, unsafe in headers, logs and file names, or has addresses to which instances
     * with {@code P2pNcclConnector} would connect.
     *
     * @param mayHaveAddresses whether the latter is allowed
     */
    static String requestId(MultiMap client, boolean mayHaveAddresses) {
        String given = client.get(REQUEST_ID);
        return given != null
                        && SANE_ID.matcher(given).matches()
                        && (mayHaveAddresses || !given.contains(P2pFlow.ADDRESS_MARK))
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
