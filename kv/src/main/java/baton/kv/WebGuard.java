package baton.kv;

import java.net.InetAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Keeps web pages of other origins from using an HTTP server through a browser that can reach it. Two kinds of requests are refused: those
 * that are not {@code GET}, {@code HEAD} or {@code OPTIONS} and that a browser marks as coming from another origin ({@code
 * Sec-Fetch-Site}, {@code Origin}); and, where the server listens on the loopback address without TLS, those to a foreign host name, as a
 * page sends them after its name was made to resolve to this host (DNS rebinding). Clients that are not browsers send none of these
 * headers.
 *
 * <p>Origins that are allowed get the headers of CORS; {@code *} allows all.
 */
public final class WebGuard {
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS");
    private static final Pattern HOST =
            Pattern.compile("(\\[[0-9A-Za-z:.%]+]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?");
    private static final Pattern HEADER_NAMES = Pattern.compile("[A-Za-z0-9!#$%&'*+.^_`|~, -]*");
    private static final Pattern NUMBERS = Pattern.compile("[0-9.]+");
    private static final String ANY = "*";
    private static final int MOST_SHOWN = 80;

    /** Names and addresses by which requests may call this host; empty for all. */
    private final Optional<Set<String>> names;

    private final Set<String> origins;

    private WebGuard(Optional<Set<String>> names, Set<String> origins) {
        this.names = names;
        this.origins = origins;
    }

    /**
     * @param boundHost address that the server listens on
     * @param tls whether it takes TLS only
     * @param allowedOrigins as {@code https://host:port}, of pages that may use the server, and with that hosts under which it may be
     *     called; or {@code *}
     * @throws ConfigException if an origin is not one
     */
    public static WebGuard of(String boundHost, boolean tls, List<String> allowedOrigins) {
        Set<String> origins = Set.copyOf(allowedOrigins.stream()
                .map(origin -> origin.toLowerCase(Locale.ROOT))
                .toList());
        Set<String> names = new HashSet<>(List.of(boundHost.toLowerCase(Locale.ROOT), "localhost", ""));
        for (String origin : origins) {
            if (!origin.equals(ANY)) {
                names.add(hostOf(origin));
            }
        }
        boolean any = origins.contains(ANY) || tls || !isLoopback(boundHost);
        return new WebGuard(any ? Optional.empty() : Optional.of(Set.copyOf(names)), origins);
    }

    private static String hostOf(String origin) {
        try {
            URI uri = URI.create(origin);
            if (uri.getScheme() != null
                    && uri.getRawAuthority() != null
                    && origin.equals(uri.getScheme() + "://" + uri.getRawAuthority())) {
                return name(uri.getRawAuthority()).orElse("");
            }
        } catch (IllegalArgumentException _) {
            // Refused below.
        }
        throw ConfigException.unsupported("allowed origins", origin, "origins such as https://host:port, *");
    }

    private static boolean isLoopback(String host) {
        try {
            return InetAddress.getByName(host).isLoopbackAddress();
        } catch (UnknownHostException _) {
            // It cannot be listened on either.
            return false;
        }
    }

    /**
     * The headers of a request by which it is judged.
     *
     * @param hosts all {@code Host} headers
     * @param hostRequired whether the protocol is HTTP/1.1
     * @param origins all {@code Origin} headers
     * @param site {@code Sec-Fetch-Site}
     * @param requestedMethod {@code Access-Control-Request-Method}
     * @param requestedHeaders {@code Access-Control-Request-Headers}
     */
    public record Request(
            String method,
            boolean hostRequired,
            List<String> hosts,
            List<String> origins,
            Optional<String> site,
            Optional<String> requestedMethod,
            Optional<String> requestedHeaders) {}

    /** How a request is to be answered. */
    public sealed interface Verdict {
        /** @param headers for the answer */
        record Admitted(Map<String, String> headers) implements Verdict {}

        /**
         * A browser asks whether a page of an allowed origin may send a request: with 200, and nothing but these headers.
         *
         * @param headers for the answer
         */
        record Preflight(Map<String, String> headers) implements Verdict {}

        /** @param status 400 for a malformed request, 403 for one that is not allowed */
        record Refused(int status, String message) implements Verdict {}
    }

    public Verdict judge(Request request) {
        if (request.hosts.size() > 1 || (request.hosts.isEmpty() && request.hostRequired)) {
            return new Verdict.Refused(
                    400, "a request must have one Host header, this one has " + request.hosts.size());
        }
        String host = request.hosts.isEmpty() ? "" : request.hosts.getFirst().strip();
        Optional<String> name = name(host);
        if (name.isEmpty()) {
            return new Verdict.Refused(
                    400, "Host is '" + shown(host) + "', must be a host name with or without a port");
        }
        if (!isCalled(name.get())) {
            return new Verdict.Refused(
                    403,
                    "Host is '" + shown(host) + "', must be localhost, an address, or the host of one of the"
                            + " --allowed-origins, where the server listens on the loopback address");
        }
        boolean allowed = origins.contains(ANY)
                || (!request.origins.isEmpty() && request.origins.stream().allMatch(this::isAllowed));
        if (!allowed && !SAFE.contains(request.method) && isForeign(request, host)) {
            String found = request.origins.isEmpty()
                    ? "Sec-Fetch-Site is '" + shown(request.site.orElse(""))
                    : "Origin is '" + shown(request.origins.getFirst());
            return new Verdict.Refused(403, found + "', must be the server's own or one of the --allowed-origins");
        }
        if (!allowed || request.origins.isEmpty()) {
            return new Verdict.Admitted(Map.of());
        }
        String origin = origins.contains(ANY) ? ANY : request.origins.getFirst();
        if (request.method.equals("OPTIONS") && request.requestedMethod.isPresent()) {
            return new Verdict.Preflight(Map.of(
                    "Access-Control-Allow-Origin",
                    origin,
                    "Access-Control-Allow-Methods",
                    "GET, POST",
                    "Access-Control-Allow-Headers",
                    request.requestedHeaders
                            .filter(names -> HEADER_NAMES.matcher(names).matches())
                            .orElse(ANY),
                    "Access-Control-Max-Age",
                    "600",
                    "Vary",
                    "Origin"));
        }
        return new Verdict.Admitted(Map.of("Access-Control-Allow-Origin", origin, "Vary", "Origin"));
    }

    private boolean isAllowed(String origin) {
        return origins.contains(origin.strip().toLowerCase(Locale.ROOT));
    }

    /** Whether a browser says that the request comes from a page that is not of the server itself. */
    private static boolean isForeign(Request request, String host) {
        if (request.site.isPresent()) {
            return !request.site.get().equals("same-origin")
                    && !request.site.get().equals("none");
        }
        return request.origins.stream()
                .anyMatch(origin ->
                        !origin.strip().toLowerCase(Locale.ROOT).endsWith("://" + host.toLowerCase(Locale.ROOT)));
    }

    /** Addresses are not resolved, so no page gets this host's by its name. */
    private boolean isCalled(String name) {
        return names.isEmpty()
                || names.get().contains(name)
                || name.endsWith(".localhost")
                || name.startsWith("[")
                || NUMBERS.matcher(name).matches();
    }

    /** A host without its port, in small letters; empty if it is malformed. */
    private static Optional<String> name(String host) {
        Matcher matcher = HOST.matcher(host);
        return matcher.matches() ? Optional.of(matcher.group(1).toLowerCase(Locale.ROOT)) : Optional.empty();
    }

    private static String shown(String text) {
        return text.length() <= MOST_SHOWN ? text : text.substring(0, MOST_SHOWN) + "...";
    }
}
