package baton.router.upstream;

import baton.kv.Ticker;
import baton.messages.http.KeptConnections;
import baton.router.metrics.RouterMetrics;
import baton.router.upstream.UpstreamFailure.Kind;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.net.ClientSSLOptions;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * Requests {@code /health} of every instance at intervals, each time over a new connection, and marks the instance up or down. An
 * instance that is slow to answer may only be busy, so it is marked down for that after several missed answers in a row. One that is down because it does not
 * answer, or answers that it is not healthy, hangs. One that refuses connections may be finishing its requests; once it has ended, their connections are lost.
 * {@link ConnectorAddressQuery Connector addresses} are asked for after that; requests do not wait for them.
 * All state is confined to one event loop.
 */
public final class HealthProbe {
    /**
     * @param deadline for a connection and for the answer
     * @param interval between two probes of an instance
     * @param apiKey for connector address queries
     * @param needsAddress instances to ask for their connector address
     * @param tls certificates, for instances at {@code https://}
     */
    public record Settings(
            Duration deadline,
            Duration interval,
            Optional<String> apiKey,
            Predicate<Instance> needsAddress,
            ClientSSLOptions tls) {}

    private static final int MISSED_ANSWERS = 3;
    /** The message of a failed connection to a host of the same network that does not answer. */
    private static final String NO_HOST = "No route to host";
    /** The limit of an answer in bytes; only the status counts. */
    private static final int MOST_ANSWER = 1 << 20;

    private final Vertx vertx;
    private final Context context;
    private final UpstreamClient upstream;
    private final Settings settings;
    private final RouterMetrics metrics;
    private final Map<Instance, Watch> watches = new HashMap<>();
    private boolean stopped;

    public HealthProbe(Vertx vertx, Settings settings, Ticker ticker, RouterMetrics metrics) {
        this.vertx = vertx;
        this.settings = settings;
        this.metrics = metrics;
        this.context = vertx.getOrCreateContext();
        KeptConnections none = KeptConnections.open(
                vertx,
                new HttpClientOptions().setKeepAlive(false).setConnectTimeout((int)
                        settings.deadline().toMillis()),
                new PoolOptions(),
                Optional.of(settings.tls()));
        this.upstream = new UpstreamClient(vertx, none, ticker);
    }

    /** Starts probing these instances; completes when each has been probed, and asked for its connector address, once. */
    public Future<Void> start(Instances instances) {
        List<Future<Void>> first = instances.sets().stream()
                .flatMap(set -> set.all().stream())
                .map(this::watch)
                .toList();
        return Future.all(first).mapEmpty();
    }

    /** Probes an instance from now on; completes after the first probe. Any thread. */
    public Future<Void> watch(Instance instance) {
        Watch watch = new Watch(instance);
        context.runOnContext(asked -> {
            Watch before = watches.put(instance, watch);
            if (before != null) {
                before.cancel();
            }
            watch.probe();
        });
        return watch.probed.future();
    }

    /** Stops probing an instance, once it has no requests: it may hang with them yet. Any thread. */
    public void forget(Instance instance) {
        context.runOnContext(asked -> {
            Watch watch = watches.get(instance);
            if (watch != null) {
                watch.forget();
            }
        });
    }

    /** Stops all probing; completes when the connections are closed. */
    public Future<Void> stop() {
        Promise<Void> done = Promise.promise();
        context.runOnContext(asked -> {
            stopped = true;
            watches.values().forEach(Watch::cancel);
            upstream.http().close().onComplete(done);
        });
        return done.future();
    }

    /** Further probes use these certificates. Any thread. */
    public Future<Boolean> update(ClientSSLOptions certificates) {
        return upstream.http().update(certificates);
    }

    /** Probes an instance now, as after a lost connection. Any thread. */
    public void soon(Instance instance) {
        context.runOnContext(asked -> {
            Watch watch = watches.get(instance);
            if (watch != null) {
                watch.probe();
            }
        });
    }

    /** Probes one instance, at most once at a time. */
    private final class Watch {
        private final Instance instance;
        private final Promise<Void> probed = Promise.promise();
        private final Optional<ConnectorAddressQuery> query;
        private boolean probing;
        private long timer = -1;
        private @Nullable Leg leg;
        private int missed;
        private boolean forgotten;
        /** When the instance was last known to work on its requests. */
        private long heard = upstream.ticker().nanos();

        Watch(Instance instance) {
            this.instance = instance;
            this.query = settings.needsAddress().test(instance)
                    ? Optional.of(new ConnectorAddressQuery(
                            upstream, instance, settings.deadline(), settings.apiKey(), metrics))
                    : Optional.empty();
        }

        void probe() {
            if (!probing && !stopped) {
                probing = true;
                vertx.cancelTimer(timer);
                leg = new Question(
                                HttpMethod.GET,
                                "/health",
                                MultiMap.caseInsensitiveMultiMap(),
                                Buffer.buffer(),
                                settings.deadline(),
                                MOST_ANSWER)
                        .ask(upstream, instance, Optional.empty(), answer -> answered(answer.status()), this::failed);
            }
        }

        void forget() {
            forgotten = true;
            if (instance.running() == 0) {
                watches.remove(instance);
                cancel();
            }
        }

        void cancel() {
            vertx.cancelTimer(timer);
            if (leg != null) {
                leg.abort();
            }
        }

        private void answered(int status) {
            missed = 0;
            if (status == 200) {
                works();
                instance.probed();
                if (instance.markUp()) {
                    query.ifPresent(ConnectorAddressQuery::cameUp);
                }
                query.filter(ConnectorAddressQuery::isDue)
                        .ifPresentOrElse(due -> leg = due.ask(this::again), this::again);
            } else {
                String reason = "GET /health answers " + status;
                if (status == 503) {
                    works();
                    instance.markStopping(reason);
                } else {
                    hangs(reason);
                }
                again();
            }
        }

        private void works() {
            heard = upstream.ticker().nanos();
            instance.silentSince(OptionalLong.empty());
        }

        private void hangs(String reason) {
            instance.markDown(reason);
            instance.silentSince(OptionalLong.of(heard));
        }

        private void failed(UpstreamFailure failure) {
            String reason = "GET /health: " + failure.reason();
            boolean isTimeout = failure.kind() == Kind.TIMEOUT;
            missed = isTimeout ? missed + 1 : 0;
            if (missed >= MISSED_ANSWERS || reason.contains(NO_HOST)) {
                hangs(reason);
            } else if (!isTimeout) {
                instance.markDown(reason);
            }
            again();
        }

        private void again() {
            probing = false;
            timer = vertx.setTimer(settings.interval().toMillis(), due -> probe());
            probed.tryComplete();
            if (forgotten) {
                forget();
            }
        }
    }
}
