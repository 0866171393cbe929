package baton.router.cache;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.http.KeptConnections;
import baton.messages.zeromq.ZeroMqSubscription;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.net.ClientSSLOptions;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows the events of all instances that are up: those with an endpoint in their settings, and those that report one at
 * {@value KvEventSources#PATH}. An instance is asked when it comes up, and again until it answers. The known blocks of an instance that was
 * down, or was removed, are dropped. The rest is confined to one event loop; {@link #known} is for any thread.
 */
public final class KvFeeds implements HeldBlocks, AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(KvFeeds.class);
    private static final Duration BETWEEN_LINES = Duration.ofMinutes(1);
    private static final int MOST_ANSWER = 64 << 10;

    /**
     * @param interval between two looks at the instances
     * @param deadline for an answer
     * @param apiKey for the question
     * @param mostBlocks that tables may have places for, of all instances together
     * @param access whether connections to publishers are sealed
     */
    public record Settings(
            Duration interval, Duration deadline, Optional<String> apiKey, long mostBlocks, PeerAccess access) {}

    /** An instance, from one time that it comes up until the next. */
    private static final class Followed {
        private final long incarnation;
        private volatile List<KvFeed> feeds = List.of();
        private boolean asking;
        private boolean asked;

        private Followed(long incarnation) {
            this.incarnation = incarnation;
        }
    }

    private final UpstreamClient upstream;
    private final Context context;
    private final Settings settings;
    private final Instances instances;
    private final IndexBudget budget;
    private final KvFeedCounts counts = new KvFeedCounts();
    private final Bursts failures;
    private final Map<Instance, Followed> followed = new ConcurrentHashMap<>();
    private final long timer;
    private volatile boolean closed;

    /**
     * Looks at the instances at once, and from then on at intervals.
     *
     * @param http asks the instances; not closed
     */
    public KvFeeds(Vertx vertx, KeptConnections http, Ticker ticker, Instances instances, Settings settings) {
        this.upstream = new UpstreamClient(vertx, http, ticker);
        this.instances = instances;
        this.settings = settings;
        this.budget = new IndexBudget(settings.mostBlocks());
        this.failures = new Bursts(4, BETWEEN_LINES, upstream.ticker());
        this.context = upstream.vertx().getOrCreateContext();
        this.timer =
                upstream.vertx().setPeriodic(0, settings.interval().toMillis(), _ -> context.runOnContext(_ -> look()));
    }

    @Override
    public int known(Instance instance, TokenChain prompt) {
        Followed it = followed.get(instance);
        if (it == null || it.incarnation != instance.incarnation()) {
            return NOT_KNOWN;
        }
        int most = NOT_KNOWN;
        for (KvFeed feed : it.feeds) {
            if (feed.isLive()) {
                most = Math.max(most, feed.table().known(prompt));
            }
        }
        return most;
    }

    /** Whether the events of any instance come. */
    public boolean isFollowing() {
        for (Followed each : followed.values()) {
            for (KvFeed feed : each.feeds) {
                if (feed.isLive()) {
                    return true;
                }
            }
        }
        return false;
    }

    /** Whether blocks with a LoRA adapter of that name were stored. */
    public boolean isLora(String name) {
        return followed.values().stream().flatMap(each -> each.feeds.stream()).anyMatch(feed -> feed.hasLora(name));
    }

    /** Publishers from which events come. */
    public int live() {
        return Math.toIntExact(followed.values().stream()
                .flatMap(each -> each.feeds.stream())
                .filter(KvFeed::isLive)
                .count());
    }

    /** Blocks that the instances hold. */
    public long blocks() {
        return followed.values().stream()
                .flatMap(each -> each.feeds.stream())
                .mapToLong(feed -> feed.table().size())
                .sum();
    }

    /** Blocks that an instance holds; empty if its events do not come. */
    public OptionalInt blocks(Instance instance) {
        Followed it = followed.get(instance);
        List<KvFeed> live = it == null
                ? List.of()
                : it.feeds.stream().filter(KvFeed::isLive).toList();
        return live.isEmpty()
                ? OptionalInt.empty()
                : OptionalInt.of(
                        live.stream().mapToInt(feed -> feed.table().size()).sum());
    }

    public KvFeedCounts counts() {
        return counts;
    }

    /** Further questions use these certificates. Any thread. */
    public Future<Boolean> update(ClientSSLOptions certificates) {
        return upstream.http().update(certificates);
    }

    private void look() {
        if (closed) {
            return;
        }
        Set<Instance> all = new HashSet<>();
        for (InstanceSet set : instances.sets()) {
            all.addAll(set.all());
        }
        followed.keySet().stream().filter(each -> !all.contains(each)).toList().forEach(this::forget);
        for (Instance instance : all) {
            Followed it = followed.get(instance);
            if (it != null && it.incarnation != instance.incarnation()) {
                forget(instance);
                it = null;
            }
            if (it == null && instance.isUp()) {
                it = new Followed(instance.incarnation());
                followed.put(instance, it);
            }
            if (it != null && !it.asked && !it.asking && instance.isUp()) {
                ask(instance, it);
            }
        }
    }

    private void ask(Instance instance, Followed it) {
        Optional<ZeroMqSubscription.Source> given = instance.settings()
                .kvEvents()
                .map(endpoint -> new ZeroMqSubscription.Source(
                        endpoint, instance.settings().kvEventsReplay(), ""));
        if (given.isPresent()) {
            follow(instance, it, List.of(given.get()));
            return;
        }
        it.asking = true;
        MultiMap headers = MultiMap.caseInsensitiveMultiMap();
        settings.apiKey().ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
        new Question(HttpMethod.GET, KvEventSources.PATH, headers, Buffer.buffer(), settings.deadline(), MOST_ANSWER)
                .ask(upstream, instance)
                .onComplete(
                        answer -> {
                            it.asking = false;
                            switch (answer.status()) {
                                case 200 -> read(instance, it, answer.body());
                                case 404, 405, 501 -> it.asked = true;
                                default -> failed(instance, "HTTP " + answer.status());
                            }
                        },
                        cause -> {
                            it.asking = false;
                            failed(instance, String.valueOf(cause.getMessage()));
                        });
    }

    private void read(Instance instance, Followed it, Buffer body) {
        try {
            follow(instance, it, KvEventSources.read(instance, body.getBytes()));
        } catch (ConfigException e) {
            it.asked = true;
            failed(instance, String.valueOf(e.getMessage()));
        }
    }

    private void failed(Instance instance, String reason) {
        failures.event(more -> log.warn("{}: GET {}: {}{}", instance, KvEventSources.PATH, reason, more));
    }

    private void follow(Instance instance, Followed it, List<ZeroMqSubscription.Source> sources) {
        it.asked = true;
        if (followed.get(instance) != it || closed) {
            return;
        }
        if (sources.isEmpty()) {
            log.info("{} publishes no KV events", instance);
        }
        it.feeds = sources.stream()
                .map(source -> {
                    log.info("{}: KV events from {}", instance, source.endpoint());
                    return new KvFeed(source, settings.access(), budget, counts, upstream.ticker());
                })
                .toList();
    }

    private void forget(Instance instance) {
        Followed gone = followed.remove(instance);
        if (gone != null) {
            List<KvFeed> feeds = gone.feeds;
            // A subscription's thread may take a while to end.
            Thread.ofVirtual().name("kv-feed-end").start(() -> feeds.forEach(KvFeed::close));
        }
    }

    @Override
    public void close() {
        closed = true;
        upstream.vertx().cancelTimer(timer);
        followed.values().forEach(each -> each.feeds.forEach(KvFeed::close));
        followed.clear();
    }
}
