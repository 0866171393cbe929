package baton.messages;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which peers an instance's KV ports serve, and which it connects to: keys of {@code kv_connector_extra_config} that all connectors
 * with a port of their own have.
 *
 * <ul>
 *   <li>{@code allowed_peers}: names, addresses and networks. Only these are connected to, wherever the name comes from, and no other name is
 *       looked up. Without a secret only these are served
 *   <li>{@code kv_auth_secret_file}: file with the {@link PeerSecret}. With it a peer is served if it has the secret, and messages are
 *       sealed with it ({@link SealedChannel})
 *   <li>{@code kv_encryption}: {@code required} has blocks sealed too, and refuses transports of other libraries; {@code off}
 *   <li>{@code kv_allow_unauthenticated}: listens on other addresses than loopback without a secret too
 * </ul>
 *
 * Any thread.
 */
public final class PeerAccess {
    public static final String ALLOWED_PEERS = "allowed_peers";
    public static final String SECRET_FILE = KvTransferConfig.AUTH_SECRET_FILE;
    public static final String ENCRYPTION = KvTransferConfig.ENCRYPTION;
    /** The value of {@link #ENCRYPTION} that has connections sealed. */
    public static final String REQUIRED = "required";

    public static final String UNAUTHENTICATED = KvTransferConfig.ALLOW_UNAUTHENTICATED;

    private static final Logger log = LoggerFactory.getLogger(PeerAccess.class);
    private static final Duration BETWEEN_COMPLAINTS = Duration.ofSeconds(10);

    /** UTF-16 units of a text in the log. */
    private static final int LONGEST_SHOWN = 300;

    private final AllowedPeers allowed;
    private final Optional<PeerSecret> secret;
    private final boolean encrypts;
    private final boolean unauthenticated;
    /** Whether {@code allowed_peers} was given. */
    private final boolean listed;

    private final LongAdder refused = new LongAdder();
    private final Bursts complaints;
    /** Whether refusals are counted and logged. */
    private final boolean complains;

    private PeerAccess(
            AllowedPeers allowed,
            Optional<PeerSecret> secret,
            boolean encrypts,
            boolean unauthenticated,
            boolean listed,
            boolean complains,
            Ticker ticker) {
        this.allowed = allowed;
        this.secret = secret;
        this.encrypts = encrypts;
        this.unauthenticated = unauthenticated;
        this.listed = listed;
        this.complains = complains;
        this.complaints = new Bursts(1, BETWEEN_COMPLAINTS, ticker);
    }

    /**
     * Every peer, without a secret: for connections that are authenticated in another way, such as by a token. Counts no
     * refusals.
     */
    public static PeerAccess everyone() {
        return new PeerAccess(
                AllowedPeers.of(ALLOWED_PEERS, List.of("0.0.0.0/0", "::/0")),
                Optional.empty(),
                false,
                true,
                true,
                false,
                Ticker.system());
    }

    /**
     * Every peer, over connections that are sealed with the secret of a file.
     *
     * @param field for errors
     * @throws ConfigException if the file has no secret
     */
    public static PeerAccess encrypting(String field, Path secretFile) {
        return new PeerAccess(
                AllowedPeers.of(ALLOWED_PEERS, List.of("0.0.0.0/0", "::/0")),
                Optional.of(PeerSecret.read(field, secretFile)),
                true,
                false,
                true,
                true,
                Ticker.system());
    }

    /** A connector's own keys, and those that are read here. */
    public static List<Setting> settings(Setting... own) {
        return Setting.join(
                List.of(own),
                List.of(
                        Setting.absent(
                                ALLOWED_PEERS,
                                "loopback, and the networks of the instance's own address",
                                "Host names, addresses and networks (`\"10.0.0.0/16\"`): only these are connected to and, without a"
                                        + " secret, only these are answered."),
                        Setting.absent(
                                SECRET_FILE,
                                "none",
                                "File with a secret, the same for all instances; `--kv-auth-secret-file` sets it."),
                        Setting.of(
                                ENCRYPTION,
                                "off",
                                "`required`: all connections of KV ports are encrypted with the secret, and peers that do not encrypt"
                                        + " are refused; `--kv-encryption` sets it. Transports of other libraries (NIXL, Mooncake,"
                                        + " NCCL, Gloo) are refused."),
                        Setting.of(
                                UNAUTHENTICATED,
                                false,
                                "Allows a KV port that other hosts reach without a secret; `--kv-allow-unauthenticated` sets it.")));
    }

    /**
     * @param extra {@code kv_connector_extra_config}
     * @param ownField setting that has {@code ownHost}, for errors
     * @param ownHost this instance's for its peers: by default loopback and its network are allowed
     * @param named hosts that other settings name, which are allowed as well
     * @throws ConfigException if a value cannot be used
     */
    public static PeerAccess of(JsonFields extra, String ownField, String ownHost, List<String> named) {
        return of(extra, ownField, ownHost, named, Ticker.system());
    }

    /**
     * As {@link #of(JsonFields, String, String, List)}.
     *
     * @param ticker limits how often names are resolved and refusals logged
     */
    public static PeerAccess of(JsonFields extra, String ownField, String ownHost, List<String> named, Ticker ticker) {
        AllowedPeers allowed = extra.strings(ALLOWED_PEERS)
                .map(hosts -> AllowedPeers.of(extra.field(ALLOWED_PEERS), hosts, ticker))
                .orElseGet(() -> AllowedPeers.byDefault(ownField, ownHost, InetAddress::getAllByName, ticker));
        Optional<PeerSecret> secret =
                extra.path(SECRET_FILE).map(file -> PeerSecret.read(extra.field(SECRET_FILE), file));
        return new PeerAccess(
                named.isEmpty() ? allowed : allowed.and(AllowedPeers.of(ownField, named, ticker)),
                secret,
                encrypts(extra, secret.isPresent()),
                extra.bool(UNAUTHENTICATED).orElse(false),
                extra.strings(ALLOWED_PEERS).isPresent(),
                true,
                ticker);
    }

    private static boolean encrypts(JsonFields extra, boolean withSecret) {
        String value = extra.string(ENCRYPTION).orElse("off");
        return switch (value) {
            case "off" -> false;
            case REQUIRED -> {
                if (!withSecret) {
                    throw new ConfigException(
                            extra.field(ENCRYPTION),
                            "is required, but there is no secret to make keys of: give all instances"
                                    + " --kv-auth-secret-file FILE (" + SECRET_FILE + ")");
                }
                yield true;
            }
            default -> throw ConfigException.unsupported(extra.field(ENCRYPTION), value, "off, required");
        };
    }

    /**
     * Requires that the port is not open to the network unauthenticated: there is a secret, the host is loopback, or the
     * configuration allows it.
     *
     * @param field setting that has {@code host}
     * @throws ConfigException if it is open
     */
    public void requireSafe(String field, String host) {
        // Names are looked up only where it matters.
        if (secret.isEmpty() && !unauthenticated && !isLoopback(host)) {
            requireSecret(field, host);
        }
    }

    /**
     * As {@link #requireSafe}, for ports on every address that another library opens.
     *
     * @param value of the setting {@code field}
     */
    public void requireSafeEverywhere(String field, String value) {
        requireUnencrypted(field, value);
        requireSecret(field, value);
    }

    /**
     * Requires that {@code kv_encryption} is off: the connections are not made by Baton, or their protocol has no place for it.
     *
     * @param value of the setting {@code field}
     * @throws ConfigException if it is not
     */
    public void requireUnencrypted(String field, String value) {
        if (encrypts) {
            throw new ConfigException(
                    field,
                    "is " + value + ": Baton cannot encrypt its connections, but " + ENCRYPTION + " is required");
        }
    }

    private void requireSecret(String field, String value) {
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

    /**
     * As {@link #requireSafe}, for a port with a protocol that has no place for a secret: {@code allowed_peers} are listed, the host is
     * loopback, or the configuration allows it.
     */
    public void requireSafeByAddress(String field, String host) {
        requireUnencrypted(field, host);
        if (!listed && !unauthenticated && !isLoopback(host)) {
            throw new ConfigException(
                    field,
                    "is " + host
                            + ", with which other hosts reach a port that cannot authenticate them by its protocol: list the instances in "
                            + ALLOWED_PEERS
                            + ", or, on a network where every host may have the KV caches, give --kv-allow-unauthenticated ("
                            + UNAUTHENTICATED + ")");
        }
    }

    private static boolean isLoopback(String host) {
        try {
            return Arrays.stream(InetAddress.getAllByName(host)).allMatch(InetAddress::isLoopbackAddress);
        } catch (UnknownHostException e) {
            // Listening there fails later, with a better error.
            return true;
        }
    }

    public Optional<PeerSecret> secret() {
        return secret;
    }

    /** The secret if blocks are to be sealed with it, as messages always are. */
    public Optional<PeerSecret> sealing() {
        return secret.filter(_ -> encrypts);
    }

    /** Whether this instance may connect to a host that a client or a peer names; looks up nothing. */
    public boolean mayConnect(String host) {
        return allowed.allows(host);
    }

    /** Whether a connection from the address is served; with a secret the address does not matter. Does not wait. */
    public boolean admits(InetAddress from) {
        return secret.isPresent() || allowed.admits(from);
    }

    /** To be called before connections arrive: starts to resolve the listed names, for {@link #admits}. Does not wait. */
    public void expectPeers() {
        if (secret.isEmpty()) {
            allowed.lookUp();
        }
    }

    /** As {@link #admits}, for a port with a protocol that has no place for a secret. Does not wait. */
    public boolean admitsByAddress(InetAddress from) {
        return allowed.admits(from);
    }

    /** As {@link #expectPeers}, for {@link #admitsByAddress}. */
    public void expectPeersByAddress() {
        allowed.lookUp();
    }

    public AllowedPeers allowed() {
        return allowed;
    }

    /** The part of an error about a host that is not allowed. */
    public String notAllowed() {
        return "not an allowed peer; allowed_peers are " + allowed;
    }

    /**
     * Counts a refused peer and logs it, a few of many.
     *
     * @param peer may be text that the peer sent, as {@code why} may
     */
    public void refuse(String peer, String why) {
        if (!complains) {
            return;
        }
        refused.increment();
        complaints.event(more -> log.warn("{} is refused: {}{}", shown(peer), shown(why), more));
    }

    /** Text that a peer may have sent, fit for a log. */
    static String shown(String text) {
        String part = text.length() > LONGEST_SHOWN ? text.substring(0, LONGEST_SHOWN) + "..." : text;
        return part.replaceAll("[^ -~]", "?");
    }

    /** The peers that were refused since the last call, as a metric; empty if there were none. */
    public Optional<Measurement> takeRefusedMeasurement() {
        long count = takeRefused();
        return count == 0 ? Optional.empty() : Optional.of(Measurement.count("baton:kv_refused_peers", count));
    }

    /** How many peers were refused since the last call. */
    public long takeRefused() {
        return refused.sumThenReset();
    }
}
