package baton.router.upstream;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import io.vertx.core.Vertx;
import io.vertx.core.WorkerExecutor;
import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows files and DNS names that tell which instances there are. What a source names anew is added, what it names no longer is removed;
 * requests under way go on. A source that fails (a file that is no JSON, a name that cannot be looked up) changes nothing, and is logged.
 */
public final class Discovery implements AutoCloseable {
    /**
     * @param file JSON: {@code {"prefill": ["http://host:port", ...], "decode": [...]}}
     * @param names DNS names, each address of which is an instance, as of a headless Kubernetes service
     * @param interval between two looks
     */
    public record Settings(Optional<Path> file, List<Name> names, Duration interval) {
        public static final Duration DEFAULT_INTERVAL = Duration.ofSeconds(2);

        public static final Settings NONE = new Settings(Optional.empty(), List.of(), DEFAULT_INTERVAL);

        public Settings {
            names = List.copyOf(names);
        }

        public boolean isEmpty() {
            return file.isEmpty() && names.isEmpty();
        }
    }

    /** A DNS name of which all addresses are instances of a role at one port. */
    public record Name(Instance.Role role, String host, int port) {
        /** @throws ConfigException if the text is not {@code name:port} */
        public static Name parse(String field, Instance.Role role, String text) {
            int colon = text.lastIndexOf(':');
            String port = text.substring(colon + 1);
            if (colon < 1
                    || !port.matches("[0-9]{1,5}")
                    || Integer.parseInt(port) < 1
                    || Integer.parseInt(port) > 65535) {
                throw ConfigException.unsupported(field, text, "name:port");
            }
            return new Name(role, text.substring(0, colon), Integer.parseInt(port));
        }
    }

    private static final Logger log = LoggerFactory.getLogger(Discovery.class);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(30);
    private static final int MOST_FILE_BYTES = 1 << 20;

    /** Which instances a source names, and how it is called in the log. */
    private interface Source {
        Set<Member> members() throws IOException;
    }

    private record Member(Instance.Role role, String url) {}

    /** A source, what it named last, and what was added of that: an instance that is known otherwise is not its to remove. */
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
    private final List<Followed> sources = new ArrayList<>();
    private final AtomicBoolean looking = new AtomicBoolean();
    private final long timer;

    /** Looks at once, and from then on at intervals, on a thread of its own, as files and names may hang. */
    public Discovery(Vertx vertx, Settings settings, Membership membership, Ticker ticker) {
        this.vertx = vertx;
        this.membership = membership;
        settings.file()
                .ifPresent(file -> sources.add(new Followed("instances file " + file, () -> read(file), ticker)));
        for (Name name : settings.names()) {
            sources.add(new Followed("DNS name " + name.host(), () -> lookUp(name), ticker));
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
        Set<Member> named;
        try {
            named = followed.source.members();
        } catch (IOException | ConfigException e) {
            followed.failures.event(
                    more -> log.warn("{}: {}; the instances stay as they are{}", followed.name, e.toString(), more));
            return;
        }
        for (Member member : named) {
            if (membership.find(member.role, member.url).isEmpty()) {
                add(followed, member);
            }
        }
        for (Member member : followed.members) {
            if (!named.contains(member) && followed.added.remove(member)) {
                membership.remove(member.role, member.url);
            }
        }
        followed.members = named;
    }

    private void add(Followed followed, Member member) {
        try {
            if (membership.add(member.role, URI.create(member.url)).isPresent()) {
                followed.added.add(member);
            }
        } catch (ConfigException e) {
            if (!followed.members.contains(member)) {
                log.warn("{}: {}", followed.name, e.getMessage());
            }
        }
    }

    private static Set<Member> read(Path file) throws IOException {
        if (Files.size(file) > MOST_FILE_BYTES) {
            throw new IOException("is longer than " + MOST_FILE_BYTES + " bytes");
        }
        JsonFields json = JsonFields.parse("", Files.readString(file));
        Set<Member> members = new LinkedHashSet<>();
        for (Instance.Role role : Instance.Role.values()) {
            json.value(role.label()).ifPresent(list -> {
                if (!list.isArray()) {
                    throw new ConfigException(role.label(), "must be an array of http://host:port, is " + list);
                }
                list.forEach(each -> members.add(member(role, InstanceAddress.parse(role.label(), each.asString("")))));
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

    private static Member member(Instance.Role role, URI address) {
        return new Member(role, new Instance(role, address).url());
    }

    private static Set<Member> lookUp(Name name) throws IOException {
        Set<Member> members = new LinkedHashSet<>();
        for (InetAddress address : InetAddress.getAllByName(name.host())) {
            String text = address.getHostAddress();
            members.add(new Member(
                    name.role(), "http://" + (text.contains(":") ? "[" + text + "]" : text) + ":" + name.port()));
        }
        return members;
    }

    @Override
    public void close() {
        vertx.cancelTimer(timer);
        worker.close();
    }
}
