package baton.router.upstream;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import io.vertx.core.Vertx;
import io.vertx.core.WorkerExecutor;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows files and DNS names that list instances. An instance that a source names anew is added, one that it no longer names is removed;
 * requests under way go on. A source that fails (a file that is no JSON, a name that cannot be looked up) changes nothing, and is logged.
 */
public final class Discovery implements AutoCloseable {
    /**
     * @param file JSON: {@code {"prefill": ["http://host:port", ...], "decode": [...]}}
     * @param names DNS names, each address or target of which is an instance, as of a headless Kubernetes service
     * @param interval between two looks
     * @param dnsServer a DNS server; empty for the system's
     */
    public record Settings(
            Optional<Path> file, List<Name> names, Duration interval, Optional<InetSocketAddress> dnsServer) {
        public static final Duration DEFAULT_INTERVAL = Duration.ofSeconds(2);

        public static final Settings NONE = new Settings(Optional.empty(), List.of(), DEFAULT_INTERVAL);

        public Settings {
            names = List.copyOf(names);
        }

        /** @throws ConfigException if the text is not {@code host:port}, or the host has no address */
        public static InetSocketAddress server(String field, String text) {
            PeerAddress server = PeerAddress.findWritten(text)
                    .orElseThrow(() -> ConfigException.unsupported(field, text, "host:port"));
            InetSocketAddress address = new InetSocketAddress(server.host(), server.port());
            if (address.isUnresolved()) {
                throw new ConfigException(field, "'" + text + "' has no address");
            }
            return address;
        }

        /** Settings with the system's DNS servers. */
        public Settings(Optional<Path> file, List<Name> names, Duration interval) {
            this(file, names, interval, Optional.empty());
        }

        public boolean isEmpty() {
            return file.isEmpty() && names.isEmpty();
        }
    }

    /**
     * A DNS name of which all addresses are instances of a role at one port, or a service of which all targets are.
     *
     * @param port {@link #OF_THE_SERVICE}: the name is a service, {@code _service._proto.name}, the SRV records of which have ports and weights
     */
    public record Name(Instance.Role role, String host, int port) {
        static final int OF_THE_SERVICE = 0;

        private static final Pattern SERVICE = Pattern.compile("_[A-Za-z0-9-]+\\._(?:tcp|udp)\\.[A-Za-z0-9._-]+");

        /** @throws ConfigException if the text is neither {@code name:port} nor {@code _service._proto.name} */
        public static Name parse(String field, Instance.Role role, String text) {
            if (SERVICE.matcher(text).matches()) {
                return new Name(role, text, OF_THE_SERVICE);
            }
            PeerAddress name = PeerAddress.find(text)
                    .orElseThrow(() -> ConfigException.unsupported(
                            field, text, "name:port, or _service._tcp.name for SRV records"));
            return new Name(role, name.host(), name.port());
        }
    }

    private static final Logger log = LoggerFactory.getLogger(Discovery.class);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(30);
    private static final int MOST_FILE_BYTES = 1 << 20;
    private static final double LEAST_WEIGHT = 0.01;

    /** Which instances a source names, and how it is called in the log. */
    private interface Source {
        /** Members with their weights. */
        Map<Member, Integer> members() throws IOException;
    }

    /** @param address with the instance's settings */
    private record Member(Instance.Role role, String url, URI address) {
        Member(Instance.Role role, URI address) {
            this(role, new Instance(role, address).url(), address);
        }
    }

    private static final int SAME_WEIGHT = 1;

    /** A source, its last list, and the instances added from it: it does not remove instances that are known otherwise. */
    private static final class Followed {
        private final String name;
        private final Source source;
        private final Bursts failures;
        private Set<Member> members = Set.of();
        private final Set<Member> added = new HashSet<>();

        private Followed(String name, Source source, Ticker ticker) {
            this.name = name;
            this.source = source;
            this.failures = new Bursts(1, BETWEEN_LINES, ticker);
        }
    }

    private final Vertx vertx;
    private final Membership membership;
    private final WorkerExecutor worker;
    private final Optional<DnsNames> dns;
    private final List<Followed> sources = new ArrayList<>();
    private final AtomicBoolean looking = new AtomicBoolean();
    private final long timer;

    /** Looks at once, and from then on at intervals, on a thread of its own, as files and names may hang. */
    public Discovery(Vertx vertx, Settings settings, Membership membership, Ticker ticker) {
        this.vertx = vertx;
        this.membership = membership;
        settings.file()
                .ifPresent(file -> sources.add(new Followed("instances file " + file, () -> read(file), ticker)));
        dns = settings.names().isEmpty() ? Optional.empty() : Optional.of(new DnsNames(settings.dnsServer()));
        for (Name name : settings.names()) {
            DnsNames names = dns.orElseThrow();
            sources.add(new Followed("DNS name " + name.host(), () -> lookUp(names, name), ticker));
        }
        worker = vertx.createSharedWorkerExecutor("baton-discovery", 1);
        timer = vertx.setPeriodic(0, settings.interval().toMillis(), _ -> look());
    }

    private void look() {
        if (looking.compareAndSet(false, true)) {
            worker.executeBlocking(() -> {
                        sources.forEach(this::follow);
                        return true;
                    })
                    .onComplete(_ -> looking.set(false));
        }
    }

    private void follow(Followed followed) {
        Map<Member, Integer> weights;
        try {
            weights = followed.source.members();
        } catch (IOException | ConfigException e) {
            followed.failures.event(
                    more -> log.warn("{}: {}; the instances stay as they are{}", followed.name, e.toString(), more));
            return;
        }
        Set<Member> named = weights.keySet();
        // First, as the same instance may be named with other settings.
        for (Member member : followed.members) {
            if (!named.contains(member) && followed.added.remove(member)) {
                membership.forget(member.role, member.url);
            }
        }
        for (Member member : named) {
            if (membership.find(member.role, member.url).isEmpty() && !membership.isMoved(member.role, member.url)) {
                add(followed, member);
            }
            if (followed.added.contains(member)) {
                // A weight of 0 is a small share, not none.
                double weight = Math.max(weights.getOrDefault(member, SAME_WEIGHT), LEAST_WEIGHT);
                membership.find(member.role, member.url).ifPresent(instance -> instance.weight(weight));
            }
        }
        followed.members = named;
    }

    private void add(Followed followed, Member member) {
        try {
            if (membership.add(member.role, member.address).isPresent()) {
                followed.added.add(member);
            }
        } catch (ConfigException e) {
            if (!followed.members.contains(member)) {
                log.warn("{}: {}", followed.name, e.getMessage());
            }
        }
    }

    private static Map<Member, Integer> read(Path file) throws IOException {
        if (Files.size(file) > MOST_FILE_BYTES) {
            throw new IOException("is longer than " + MOST_FILE_BYTES + " bytes");
        }
        JsonFields json = JsonFields.parse("", Files.readString(file));
        Map<Member, Integer> members = new LinkedHashMap<>();
        for (Instance.Role role : Instance.Role.values()) {
            json.value(role.label()).ifPresent(list -> {
                if (!list.isArray()) {
                    throw new ConfigException(role.label(), "must be an array of http://host:port, is " + list);
                }
                list.forEach(each -> members.put(
                        new Member(role, InstanceAddress.parse(role.label(), each.asString(""))), SAME_WEIGHT));
            });
        }
        json.names().stream()
                .filter(name -> !name.equals("prefill") && !name.equals("decode"))
                .findFirst()
                .ifPresent(name -> {
                    throw new ConfigException(name, "is unknown; there are prefill and decode");
                });
        return members;
    }

    private static Map<Member, Integer> lookUp(DnsNames dns, Name name) throws IOException {
        Map<Member, Integer> members = new LinkedHashMap<>();
        if (name.port() != Name.OF_THE_SERVICE) {
            for (String address : dns.addresses(name.host())) {
                members.put(new Member(name.role(), URI.create("http://" + address + ":" + name.port())), SAME_WEIGHT);
            }
            return members;
        }
        for (DnsNames.Target target : dns.targets(name.host())) {
            for (String address : dns.addresses(target.host())) {
                members.put(
                        new Member(name.role(), URI.create("http://" + address + ":" + target.port())),
                        target.weight());
            }
        }
        return members;
    }

    @Override
    public void close() {
        vertx.cancelTimer(timer);
        worker.close();
        dns.ifPresent(DnsNames::close);
    }
}
