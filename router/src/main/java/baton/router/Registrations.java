package baton.router;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.p2p.Registration;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import baton.router.RouterMetrics.RegistrationResult;
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
 * The instances that register themselves: each says every few seconds that it is there, where it takes requests and where its
 * connector listens, and is dropped when it has not done so for a while. A new one gets requests once its health is known.
 * An instance that is configured too stays without its registration, but then nobody knows where its connector listens.
 *
 * <h2>Which registrations are taken</h2>
 * The router sends requests, prompts among them, to every instance that registers. So callers and the addresses that they name must be in the
 * allowed networks, addresses must be literal, and what is held of callers is bounded: one connection registers at most
 * {@value #MOST_OF_CONNECTION} instances at a time, one address a quarter of all and never fewer than that. An instance counts for the sender that made it known.
 */
final class Registrations implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(Registrations.class);
    private static final int MAX_MESSAGE_BYTES = 4 << 10;
    private static final int MAX_FRAMES = 4;
    /** Connections beyond those of the instances that may register: of instances on their way in and out. */
    private static final int SPARE_CONNECTIONS = 64;

    /** A connection usually speaks for one. */
    static final int MOST_OF_CONNECTION = 8;

    private static final Duration EXCHANGE = Duration.ofSeconds(5);
    private static final Duration IDLE = Duration.ofMinutes(1);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(10);
    private static final int LINES = 8;

    private final Vertx vertx;
    private final RouterConfig.Registry config;
    private final Networks networks;
    private final OwnAddress router;
    private final Map<Instance.Role, InstanceSet> sets;
    private final HealthProbe probe;
    private final RouterMetrics metrics;
    private final PeerChannel channel;
    private final SideChannel.Listener listener;
    private final long timer;
    private final Bursts refusals = new Bursts(1, BETWEEN_LINES, Ticker.system());
    private final Bursts joins = new Bursts(LINES, BETWEEN_LINES, Ticker.system());
    private final Bursts drops = new Bursts(LINES, BETWEEN_LINES, Ticker.system());

    /** Guarded by this, as is what follows. */
    private final Map<Key, Entry> known = new HashMap<>();

    private long swept = System.nanoTime();

    private record Key(Instance.Role role, String url) {}

    /**
     * @param configured what it is without its registration, if it is configured too
     * @param sender what made it known
     * @param heard when it was last heard of
     */
    private record Entry(Instance instance, Optional<Instance> configured, Sender sender, long heard) {
        Entry heardAt(long now) {
            return new Entry(instance, configured, sender, now);
        }
    }

    /** One connection; equal to itself alone. */
    private static final class Sender {
        final InetAddress address;

        Sender(InetAddress address) {
            this.address = address;
        }
    }

    /**
     * @param router where the router takes requests: no instance may be there
     * @throws ConfigException if the address cannot be listened on
     */
    Registrations(
            Vertx vertx,
            RouterConfig.Registry config,
            OwnAddress router,
            InstanceSet prefills,
            InstanceSet decodes,
            HealthProbe probe,
            RouterMetrics metrics) {
        this.vertx = vertx;
        this.config = config;
        this.router = router;
        this.networks = Networks.parse("register allow", config.networks());
        this.sets = Map.of(Instance.Role.PREFILL, prefills, Instance.Role.DECODE, decodes);
        this.probe = probe;
        this.metrics = metrics;
        this.channel = new ZeroMqPeerChannel(new ZeroMqSideChannel.Limits(
                MAX_MESSAGE_BYTES,
                MAX_MESSAGE_BYTES,
                MAX_FRAMES,
                config.maxInstances() + SPARE_CONNECTIONS,
                EXCHANGE,
                IDLE));
        try {
            this.listener = channel.listen(config.host(), config.port(), this::arrived);
        } catch (MessageException e) {
            channel.close();
            throw new ConfigException("register port", String.valueOf(e.getMessage()), e);
        }
        this.timer = vertx.setPeriodic(Math.max(1, config.ttl().toMillis() / 10), due -> sweep(System.nanoTime()));
    }

    int port() {
        return listener.port();
    }

    private PeerChannel.Guest arrived(PeerChannel.Caller caller) {
        Sender sender = new Sender(caller.address());
        return new PeerChannel.Guest() {
            private Optional<Instance> instance = Optional.empty();

            @Override
            public void received(List<byte[]> frames) throws MessageException {
                instance = receive(sender, frames);
            }

            @Override
            public void left() {
                // It may have died, or only its connection.
                instance.ifPresent(probe::soon);
            }
        };
    }

    /** One message. @throws MessageException if its sender deserves no connection */
    private Optional<Instance> receive(Sender sender, List<byte[]> frames) throws MessageException {
        RegistrationResult result;
        String reason;
        try {
            if (frames.size() != 1) {
                throw new ConfigException("registration", "has " + frames.size() + " frames, must have one");
            }
            Registration registration = Registration.decode(frames.getFirst());
            if (!networks.contain(sender.address)) {
                result = RegistrationResult.NOT_ALLOWED;
                reason = "it is in none of the networks " + config.networks();
            } else if (!isAllowed(registration.http()) || !isAllowed(registration.control())) {
                result = RegistrationResult.NOT_ALLOWED;
                reason = "the addresses " + registration.http() + " and " + registration.control()
                        + " must be IP addresses in the networks " + config.networks();
            } else if (router.isAt(
                    registration.http().host(), registration.http().port())) {
                result = RegistrationResult.OWN_ADDRESS;
                reason = "the address " + registration.http() + " is this router's own";
            } else {
                switch (register(registration, sender, System.nanoTime())) {
                    case Admitted(Instance instance) -> {
                        return Optional.of(instance);
                    }
                    case Full(RegistrationResult why, String words) -> {
                        result = why;
                        reason = words;
                    }
                }
            }
        } catch (ConfigException e) {
            result = RegistrationResult.MALFORMED;
            reason = String.valueOf(e.getMessage());
        }
        metrics.registration(result);
        String refused = reason;
        refusals.event(more ->
                log.warn("a registration from {} is refused: {}{}", sender.address.getHostAddress(), refused, more));
        throw new MessageException(reason);
    }

    private boolean isAllowed(PeerAddress address) {
        if (address.host().equals("localhost")) {
            return networks.contain(InetAddress.getLoopbackAddress());
        }
        try {
            InetAddress literal = InetAddress.ofLiteral(address.host());
            // 10.1 and 167772161 are IPv4 addresses too, of which others may think otherwise.
            boolean plain =
                    literal instanceof Inet6Address || literal.getHostAddress().equals(address.host());
            return plain && networks.contain(literal);
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private sealed interface Outcome {}

    private record Admitted(Instance instance) implements Outcome {}

    private record Full(RegistrationResult why, String words) implements Outcome {}

    private synchronized Outcome register(Registration registration, Sender sender, long now) {
        Instance.Role role = switch (registration.kind()) {
            case PREFILL -> Instance.Role.PREFILL;
            case DECODE -> Instance.Role.DECODE;
        };
        Optional<PeerAddress> kvAddress = Optional.of(registration.control());
        Instance fresh = new Instance(role, URI.create("http://" + registration.http()), kvAddress);
        Key key = new Key(role, fresh.url());
        Entry entry = known.get(key);
        if (entry != null && entry.instance.kvAddress().equals(kvAddress)) {
            known.put(key, entry.heardAt(now));
            metrics.registration(RegistrationResult.RENEWED);
            return new Admitted(entry.instance);
        }
        Optional<Full> full = full(key, sender);
        if (full.isPresent()) {
            return full.get();
        }
        InstanceSet set = set(role);
        Optional<Instance> configured = entry != null
                ? entry.configured
                : set.all().stream()
                        .filter(each -> each.url().equals(fresh.url()))
                        .findFirst();
        Optional<Instance> before = entry != null ? Optional.of(entry.instance) : configured;
        known.put(key, new Entry(fresh, configured, sender, now));
        if (before.isPresent()) {
            // It has started anew, or its connector's address was not known: another one in any case.
            set.replace(before.get(), fresh);
            probe.forget(before.get());
        } else {
            set.add(fresh);
        }
        probe.watch(fresh);
        metrics.registration(RegistrationResult.JOINED);
        joins.event(more ->
                log.info("{} has registered, its connector listens on {}{}", fresh, registration.control(), more));
        return new Admitted(fresh);
    }

    /** Why no instance more is taken from there, other than in place of the one that has the key. */
    private Optional<Full> full(Key key, Sender sender) {
        int all = 0;
        int ofConnection = 0;
        int ofAddress = 0;
        for (Map.Entry<Key, Entry> each : known.entrySet()) {
            if (!each.getKey().equals(key)) {
                all++;
                ofConnection += each.getValue().sender == sender ? 1 : 0;
                ofAddress += each.getValue().sender.address.equals(sender.address) ? 1 : 0;
            }
        }
        int mostOfAddress = Math.max(MOST_OF_CONNECTION, config.maxInstances() / 4);
        if (all >= config.maxInstances()) {
            return Optional.of(new Full(
                    RegistrationResult.FULL, config.maxInstances() + " instances have registered, the most allowed"));
        }
        if (ofConnection >= MOST_OF_CONNECTION) {
            return Optional.of(new Full(
                    RegistrationResult.SENDER_FULL,
                    ofConnection + " instances have registered over this connection, the most allowed"));
        }
        if (ofAddress >= mostOfAddress) {
            return Optional.of(new Full(
                    RegistrationResult.SENDER_FULL,
                    ofAddress + " instances have registered from this address, the most allowed"));
        }
        return Optional.empty();
    }

    private synchronized void sweep(long now) {
        say(joins.due(), "have registered");
        say(drops.due(), "have not said that they are there");
        say(refusals.due(), "could not register");
        boolean stoodStill = now - swept > config.ttl().toNanos() / 2;
        swept = now;
        for (Iterator<Map.Entry<Key, Entry>> all = known.entrySet().iterator(); all.hasNext(); ) {
            Map.Entry<Key, Entry> each = all.next();
            Entry entry = each.getValue();
            if (stoodStill) {
                // What came meanwhile waits to be read.
                each.setValue(entry.heardAt(now));
            } else if (now - entry.heard > config.ttl().toNanos()) {
                all.remove();
                drop(entry);
            }
        }
    }

    private static void say(long more, String what) {
        if (more > 0) {
            log.info("{} instances more {}", more, what);
        }
    }

    private void drop(Entry entry) {
        metrics.registration(RegistrationResult.EXPIRED);
        drops.event(more -> log.warn(
                "{} has not said for {} s that it is there{}",
                entry.instance,
                config.ttl().toMillis() / 1e3,
                more));
        InstanceSet set = set(entry.instance.role());
        probe.forget(entry.instance);
        entry.configured.ifPresentOrElse(
                configured -> {
                    set.replace(entry.instance, configured);
                    probe.watch(configured);
                },
                () -> set.remove(entry.instance));
    }

    private InstanceSet set(Instance.Role role) {
        return Optional.ofNullable(sets.get(role)).orElseThrow();
    }

    /** When it returns no instance can register any more; those that have registered stay. */
    @Override
    public void close() {
        vertx.cancelTimer(timer);
        channel.close();
    }
}
