package baton.router.upstream;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.InvalidFieldException;
import baton.kv.Require;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.Network;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.p2p.Registration;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.RegistrationResult;
import io.vertx.core.Vertx;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.URI;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Instances that register themselves: each sends a registration message every few seconds, with the address that takes requests and
 * the address of its connector, and is dropped after a time to live without one. A new instance gets requests once its health is
 * known. An instance that is configured too stays without its registration, but then its connector's address is unknown.
 *
 * <h2>Which registrations are accepted</h2>
 * The router sends requests, prompts among them, to every instance that registers. So senders and the addresses in their messages must
 * be in the allowed networks, addresses must be literal, and the number of instances is bounded: one connection registers at most
 * {@value #MAX_PER_CONNECTION} instances at a time, one address a quarter of all and never fewer than that. An instance counts for
 * the sender of its first registration.
 */
public final class Registrations implements AutoCloseable {
    /**
     * Where instances register themselves, as vLLM's instances with {@code proxy_ip} and {@code proxy_port} do.
     *
     * @param host address to listen on
     * @param port port to listen on; 0 takes a free one
     * @param ttl an instance without a registration message for so long is dropped; vLLM's instances send one every 3 s
     * @param maxInstances registered at once; more are refused
     * @param networks in CIDR notation; an instance with an address that is in none is refused, as the router would send
     *     requests there
     */
    public record Settings(String host, int port, Duration ttl, int maxInstances, List<String> networks) {
        public static final int DEFAULT_MAX_INSTANCES = 1024;

        /** This host and private networks (RFC 1918, RFC 4193); not link-local ones, where clouds keep secrets. */
        public static final List<String> PRIVATE_NETWORKS =
                List.of("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7");

        /** @throws ConfigException naming the field and value that cannot be used */
        public Settings {
            if (host.isBlank()) {
                throw ConfigException.unsupported("register host", host, "a host name or address");
            }
            Require.port("register port", port);
            Require.atMost("register ttl", ttl, Duration.ofDays(1));
            Require.atLeast("max registered instances", maxInstances, 1);
            networks = List.copyOf(networks);
            networks.forEach(text -> Network.parse("register allow", text));
        }
    }

    private static final Logger log = LoggerFactory.getLogger(Registrations.class);
    private static final int MAX_MESSAGE_BYTES = 4 << 10;
    private static final int MAX_FRAMES = 4;
    /** Connections beyond one per instance allowed, for instances that start or stop. */
    private static final int SPARE_CONNECTIONS = 64;

    /** Instances of one connection; usually it is one. */
    public static final int MAX_PER_CONNECTION = 8;

    private static final Duration EXCHANGE = Duration.ofSeconds(5);
    private static final Duration IDLE = Duration.ofMinutes(1);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);
    private static final int LINES = 8;

    private final Vertx vertx;
    private final Settings settings;
    private final List<Network> networks;
    private final OwnAddress router;
    private final Instances instances;
    private final HealthProbe probe;
    private final RouterMetrics metrics;
    private final PeerChannel channel;
    private final SideChannel.Listener listener;
    private final long timer;
    private final Ticker ticker;
    private final Bursts refusals;
    private final Bursts joins;
    private final Bursts drops;

    /** Guarded by this, as is {@code swept}. */
    private final Map<Key, Entry> known = new HashMap<>();

    private long swept;

    private record Key(Instance.Role role, String url) {}

    /**
     * @param configured the instance as configured, if it is configured too
     * @param sender of the first registration
     * @param heard when the last registration message arrived, in the ticker's nanoseconds
     */
    private record Entry(Instance instance, Optional<Instance> configured, Sender sender, long heard) {
        Entry heardAt(long now) {
            return new Entry(instance, configured, sender, now);
        }
    }

    /** One connection, compared by identity. */
    private static final class Sender {
        final InetAddress address;

        Sender(InetAddress address) {
            this.address = address;
        }
    }

    /**
     * @param router where the router takes requests: no instance may have that address
     * @throws ConfigException if the address cannot be listened on
     */
    public Registrations(
            Vertx vertx,
            Settings settings,
            OwnAddress router,
            Instances instances,
            HealthProbe probe,
            RouterMetrics metrics,
            Ticker ticker) {
        this.vertx = vertx;
        this.settings = settings;
        this.router = router;
        this.networks = settings.networks().stream()
                .map(text -> Network.parse("register allow", text))
                .toList();
        this.instances = instances;
        this.probe = probe;
        this.metrics = metrics;
        this.ticker = ticker;
        this.refusals = new Bursts(1, BETWEEN_LINES, ticker);
        this.joins = new Bursts(LINES, BETWEEN_LINES, ticker);
        this.drops = new Bursts(LINES, BETWEEN_LINES, ticker);
        this.swept = ticker.nanos();
        this.channel = new ZeroMqPeerChannel(
                new ZeroMqSideChannel.Limits(
                        MAX_MESSAGE_BYTES,
                        MAX_MESSAGE_BYTES,
                        MAX_FRAMES,
                        settings.maxInstances() + SPARE_CONNECTIONS,
                        EXCHANGE,
                        IDLE),
                ticker,
                ZeroMqPeerChannel.Sockets.DEALER_ROUTER);
        try {
            this.listener = channel.listen(settings.host(), settings.port(), this::arrived);
        } catch (MessageException e) {
            channel.close();
            throw new ConfigException("register port", String.valueOf(e.getMessage()), e);
        }
        this.timer = vertx.setPeriodic(Math.max(1, settings.ttl().toMillis() / 10), due -> sweep(ticker.nanos()));
    }

    /** The port listened on. */
    public int port() {
        return listener.port();
    }

    private PeerChannel.Guest arrived(PeerChannel.Caller caller) {
        Sender sender = new Sender(caller.address());
        return new PeerChannel.Guest() {
            private Optional<Instance> instance = Optional.empty();

            @Override
            public void received(List<byte[]> frames) throws MessageException {
                instance = Optional.of(receive(sender, frames));
            }

            @Override
            public void left() {
                // The instance may have ended, or only its connection.
                instance.ifPresent(probe::soon);
            }
        };
    }

    /**
     * Handles one message.
     *
     * @throws MessageException if the registration is refused; the connection is then closed
     */
    private Instance receive(Sender sender, List<byte[]> frames) throws MessageException {
        try {
            if (frames.size() != 1) {
                throw new InvalidFieldException("registration", "has " + frames.size() + " frames, must have one");
            }
            Registration registration = Registration.decode(frames.getFirst());
            requireAllowed(registration, sender);
            return register(registration, sender, ticker.nanos());
        } catch (InvalidFieldException e) {
            throw refusal(sender, RegistrationResult.MALFORMED, String.valueOf(e.getMessage()));
        } catch (Refused e) {
            throw refusal(sender, e.result, String.valueOf(e.getMessage()));
        }
    }

    private MessageException refusal(Sender sender, RegistrationResult result, String reason) {
        metrics.count(RouterMetric.REGISTRATIONS, result);
        refusals.event(more ->
                log.warn("a registration from {} is refused: {}{}", sender.address.getHostAddress(), reason, more));
        return new MessageException(reason);
    }

    /** A well-formed registration that is not accepted. */
    private static final class Refused extends Exception {
        private final RegistrationResult result;

        private Refused(RegistrationResult result, String reason) {
            super(reason, null, false, false);
            this.result = result;
        }
    }

    private void requireAllowed(Registration registration, Sender sender) throws Refused {
        PeerAddress http = registration.http();
        if (!isAllowed(sender.address)) {
            throw new Refused(RegistrationResult.NOT_ALLOWED, "it is in none of the networks " + settings.networks());
        }
        if (!isAllowed(http) || !isAllowed(registration.control())) {
            throw new Refused(
                    RegistrationResult.NOT_ALLOWED,
                    "the addresses " + http + " and " + registration.control()
                            + " must be IP addresses in the networks " + settings.networks());
        }
        if (router.isAt(http.host(), http.port())) {
            throw new Refused(RegistrationResult.OWN_ADDRESS, "the address " + http + " is this router's own");
        }
    }

    private boolean isAllowed(InetAddress address) {
        return networks.stream().anyMatch(network -> network.contains(address));
    }

    private boolean isAllowed(PeerAddress address) {
        if (address.host().equals("localhost")) {
            return isAllowed(InetAddress.getLoopbackAddress());
        }
        try {
            InetAddress literal = InetAddress.ofLiteral(address.host());
            // 10.1 and 167772161 are IPv4 addresses too, which other parsers may read differently.
            boolean plain =
                    literal instanceof Inet6Address || literal.getHostAddress().equals(address.host());
            return plain && isAllowed(literal);
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private synchronized Instance register(Registration registration, Sender sender, long now) throws Refused {
        Instance.Role role = switch (registration.kind()) {
            case PREFILL -> Instance.Role.PREFILL;
            case DECODE -> Instance.Role.DECODE;
        };
        Optional<PeerAddress> kvAddress = Optional.of(registration.control());
        URI address = URI.create("http://" + registration.http());
        Key key = new Key(role, new Instance(role, address).url());
        Entry entry = known.get(key);
        if (entry != null && entry.instance.kvAddress().equals(kvAddress)) {
            known.put(key, entry.heardAt(now));
            metrics.count(RouterMetric.REGISTRATIONS, RegistrationResult.RENEWED);
            return entry.instance;
        }
        requireRoom(key, sender);
        InstanceSet set = instances.of(role);
        Optional<Instance> configured = entry != null ? entry.configured : set.find(key.url());
        Instance fresh = new Instance(
                role, address, kvAddress, configured.map(Instance::settings).orElse(InstanceSettings.NONE));
        Optional<Instance> before = entry != null ? Optional.of(entry.instance) : configured;
        known.put(key, new Entry(fresh, configured, sender, now));
        if (before.isPresent()) {
            // The instance was restarted, or its connector's address was unknown until now.
            set.replace(before.get(), fresh);
            probe.forget(before.get());
        } else {
            set.add(fresh);
        }
        probe.watch(fresh);
        metrics.count(RouterMetric.REGISTRATIONS, RegistrationResult.JOINED);
        joins.event(more ->
                log.info("{} has registered, its connector listens on {}{}", fresh, registration.control(), more));
        return fresh;
    }

    /** Whether the sender may register one more instance besides the one with the key. */
    private void requireRoom(Key key, Sender sender) throws Refused {
        List<Sender> others = known.entrySet().stream()
                .filter(each -> !each.getKey().equals(key))
                .map(each -> each.getValue().sender)
                .toList();
        long ofConnection = others.stream().filter(each -> each == sender).count();
        long ofAddress = others.stream()
                .filter(each -> each.address.equals(sender.address))
                .count();
        if (others.size() >= settings.maxInstances()) {
            throw new Refused(
                    RegistrationResult.FULL, settings.maxInstances() + " instances have registered, the most allowed");
        }
        if (ofConnection >= MAX_PER_CONNECTION) {
            throw new Refused(
                    RegistrationResult.SENDER_FULL,
                    ofConnection + " instances have registered over this connection, the most allowed");
        }
        if (ofAddress >= Math.max(MAX_PER_CONNECTION, settings.maxInstances() / 4)) {
            throw new Refused(
                    RegistrationResult.SENDER_FULL,
                    ofAddress + " instances have registered from this address, the most allowed");
        }
    }

    private synchronized void sweep(long now) {
        logRest(joins.due(), "have registered");
        logRest(drops.due(), "have sent no registration and are dropped");
        logRest(refusals.due(), "could not register");
        boolean suspended = now - swept > settings.ttl().toNanos() / 2;
        swept = now;
        for (Iterator<Map.Entry<Key, Entry>> all = known.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry<Key, Entry> each = all.next();
            Entry entry = each.getValue();
            if (suspended) {
                // This process was stopped; messages that arrived in the meantime are still to be read.
                each.setValue(entry.heardAt(now));
            } else if (now - entry.heard > settings.ttl().toNanos()) {
                all.remove();
                drop(entry);
            }
        }
    }

    private static void logRest(long more, String what) {
        if (more > 0) {
            log.info("{} more instances {}", more, what);
        }
    }

    private void drop(Entry entry) {
        metrics.count(RouterMetric.REGISTRATIONS, RegistrationResult.EXPIRED);
        drops.event(more -> log.warn(
                "{} has sent no registration for {} s and is dropped{}",
                entry.instance,
                settings.ttl().toMillis() / 1e3,
                more));
        InstanceSet set = instances.of(entry.instance.role());
        probe.forget(entry.instance);
        entry.configured.ifPresentOrElse(
                configured -> {
                    set.replace(entry.instance, configured);
                    probe.watch(configured);
                },
                () -> set.remove(entry.instance));
    }

    /** Stops listening; registered instances stay. */
    @Override
    public void close() {
        vertx.cancelTimer(timer);
        channel.close();
    }
}
