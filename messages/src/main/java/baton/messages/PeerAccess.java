package baton.messages;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which peers an instance's KV ports answer, and which it connects to: keys of {@code kv_connector_extra_config} that all connectors
 * with a port of their own have.
 *
 * <ul>
 *   <li>{@code allowed_peers}: names, addresses and networks. Only these are connected to, wherever the name comes from, and no other name is
 *       looked up. Without a secret only these are answered
 *   <li>{@code kv_auth_secret_file}: file with the {@link PeerSecret}. With it a peer is answered if it shows that it knows the secret
 *   <li>{@code kv_allow_unauthenticated}: listens on other addresses than loopback without a secret too
 * </ul>
 *
 * Any thread.
 */
public final class PeerAccess {
    public static final String ALLOWED_PEERS = "allowed_peers";
    public static final String SECRET_FILE = KvTransferConfig.AUTH_SECRET_FILE;
    public static final String UNAUTHENTICATED = KvTransferConfig.ALLOW_UNAUTHENTICATED;

    private static final Logger log = LoggerFactory.getLogger(PeerAccess.class);
    private static final Duration BETWEEN_COMPLAINTS = Duration.ofSeconds(10);

    /** UTF-16 units of a text in the log. */
    private static final int LONGEST_SHOWN = 300;

    private final AllowedPeers allowed;
    private final Optional<PeerSecret> secret;
    private final boolean unauthenticated;
    private final LongAdder refused = new LongAdder();
    private final Bursts complaints = new Bursts(1, BETWEEN_COMPLAINTS, Ticker.system());

    private PeerAccess(AllowedPeers allowed, Optional<PeerSecret> secret, boolean unauthenticated) {
        this.allowed = allowed;
        this.secret = secret;
        this.unauthenticated = unauthenticated;
    }

    /** The keys that are read here, and a connector's own. */
    public static Set<String> withSettings(String... own) {
        return Stream.concat(Stream.of(ALLOWED_PEERS, SECRET_FILE, UNAUTHENTICATED), Arrays.stream(own))
                .collect(Collectors.toUnmodifiableSet());
    }

    /**
     * @param extra {@code kv_connector_extra_config}
     * @param ownField setting that has {@code ownHost}, for errors
     * @param ownHost this instance's for its peers: by default loopback and its network are allowed
     * @param named hosts that other settings name, which are allowed as well
     * @throws ConfigException if a value cannot be used
     */
    public static PeerAccess of(JsonFields extra, String ownField, String ownHost, List<String> named) {
        AllowedPeers allowed = extra.strings(ALLOWED_PEERS)
                .map(hosts -> AllowedPeers.of(extra.field(ALLOWED_PEERS), hosts))
                .orElseGet(() -> AllowedPeers.byDefault(ownField, ownHost));
        return new PeerAccess(
                named.isEmpty() ? allowed : allowed.and(AllowedPeers.of(ownField, named)),
                extra.string(SECRET_FILE).map(file -> PeerSecret.read(extra.field(SECRET_FILE), Path.of(file))),
                extra.bool(UNAUTHENTICATED).orElse(false));
    }

    /**
     * Without a secret a port on other addresses than loopback is open to the network.
     *
     * @param field setting that has {@code host}
     * @throws ConfigException if that is so, and is not said to be meant
     */
    public void requireSafe(String field, String host) {
        // Names are looked up only where it matters.
        if (secret.isEmpty() && !unauthenticated && !isLoopback(host)) {
            requireSafeEverywhere(field, host);
        }
    }

    /**
     * As {@link #requireSafe}, for what listens on every address.
     *
     * @param value of the setting {@code field}
     */
    public void requireSafeEverywhere(String field, String value) {
        if (secret.isEmpty() && !unauthenticated) {
            throw new ConfigException(
                    field,
                    "is " + value
                            + ", with which other hosts reach the KV port, and there is no secret to know peers by:"
                            + " give all instances --kv-auth-secret-file FILE (" + SECRET_FILE
                            + "), or, on a network where every host may have the KV caches, --kv-allow-unauthenticated ("
                            + UNAUTHENTICATED + ")");
        }
    }

    private static boolean isLoopback(String host) {
        try {
            return Arrays.stream(InetAddress.getAllByName(host)).allMatch(InetAddress::isLoopbackAddress);
        } catch (UnknownHostException e) {
            // Nothing can listen there, which the attempt says.
            return true;
        }
    }

    public Optional<PeerSecret> secret() {
        return secret;
    }

    /** Whether a host may be connected to that a client or a peer names; looks up nothing. */
    public boolean mayConnect(String host) {
        return allowed.allows(host);
    }

    /** Whether a connection from there is served, as far as its address tells: with a secret all that show it are. Does not wait. */
    public boolean admits(InetAddress from) {
        return secret.isPresent() || allowed.admits(from);
    }

    /** Before connections come: begins to find out where listed names lead, so that {@link #admits} knows it in time. Does not wait. */
    public void expectPeers() {
        if (secret.isEmpty()) {
            allowed.lookUp();
        }
    }

    public AllowedPeers allowed() {
        return allowed;
    }

    /** What errors say of a host that is not to be connected to, or not to be served. */
    public String notAllowed() {
        return "not an allowed peer; allowed_peers are " + allowed;
    }

    /**
     * Counts a peer that was refused, and says so in the log, a few of many.
     *
     * @param peer may be a stranger's text, as {@code why} may
     */
    public void refuse(String peer, String why) {
        refused.increment();
        complaints.event(more -> log.warn("{} is refused: {}{}", shown(peer), shown(why), more));
    }

    /** What may be a stranger's, fit for a log. */
    static String shown(String text) {
        String part = text.length() > LONGEST_SHOWN ? text.substring(0, LONGEST_SHOWN) + "..." : text;
        return part.replaceAll("[^ -~]", "?");
    }

    /** The peers that were refused since this was asked before, as a metric; empty if there were none. */
    public Optional<Measurement> takeRefusedMeasurement() {
        long count = takeRefused();
        return count == 0 ? Optional.empty() : Optional.of(Measurement.count("baton:kv_refused_peers", count));
    }

    /** How many were refused since this was asked before. */
    public long takeRefused() {
        return refused.sumThenReset();
    }
}
