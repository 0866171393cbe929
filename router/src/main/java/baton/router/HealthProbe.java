package baton.router;

import baton.router.UpstreamFailure.Kind;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Asks every instance for {@code /health}, again and again, each time over a new connection, and marks it up or down. An
 * instance that is slow to answer may only be busy, so it takes several answers missed in a row to mark it down for that.
 * What the flow needs to know of an instance is asked after that; requests do not wait for it.
 * All state belongs to one event loop.
 */
final class HealthProbe {
    private static final int MISSED_ANSWERS = 3;

    private final Vertx vertx;
    private final Context context;
    private final HttpClient client;
    private final RouterConfig.Limits limits;
    private final Optional<String> apiKey;
    private final HandoffFlow flow;
    private final RouterMetrics metrics;
    private final Map<Instance, Watch> watches = new HashMap<>();
    private boolean stopped;

    HealthProbe(Vertx vertx, RouterConfig config, HandoffFlow flow, RouterMetrics metrics) {
        this.vertx = vertx;
        this.limits = config.limits();
        this.apiKey = config.apiKey();
        this.flow = flow;
        this.metrics = metrics;
        this.context = vertx.getOrCreateContext();
        this.client = vertx.createHttpClient(
                new HttpClientOptions().setKeepAlive(false).setConnectTimeout((int)
                        limits.connect().toMillis()));
    }

    /** Starts probing these; completes when every one has been probed, and asked, once. */
    Future<Void> start(InstanceSet... sets) {
        List<Future<Void>> first = Stream.of(sets)
                .flatMap(set -> set.all().stream())
                .map(this::watch)
                .toList();
        return Future.all(first).mapEmpty();
    }

    /** Probes an instance from now on; completes when that was done once. Any thread. */
    Future<Void> watch(Instance instance) {
        Watch watch = new Watch(instance);
        context.runOnContext(asked -> {
            watches.put(instance, watch);
            watch.probe();
        });
        return watch.probed.future();
    }

    /** Probes an instance no more. Any thread. */
    void forget(Instance instance) {
        context.runOnContext(asked -> {
            Watch watch = watches.remove(instance);
            if (watch != null) {
                watch.cancel();
            }
        });
    }

    /** Ends all probing; completes when nothing of it runs any more. */
    Future<Void> stop() {
        Promise<Void> done = Promise.promise();
        context.runOnContext(asked -> {
            stopped = true;
            watches.values().forEach(Watch::cancel);
            client.close().onComplete(done);
        });
        return done.future();
    }

    /** Probes an instance now, for one that has just lost a connection. Any thread. */
    void soon(Instance instance) {
        context.runOnContext(asked -> {
            Watch watch = watches.get(instance);
            if (watch != null) {
                watch.probe();
            }
        });
    }

    /** Probes one instance, at most once at a time. */
    private final class Watch implements Leg.Receiver {
        private final Instance instance;
        private final Promise<Void> probed = Promise.promise();
        private final Optional<ConnectorAddressQuery> question;
        private boolean probing;
        private long timer = -1;
        private @Nullable Leg leg;
        private int status;
        private int missed;

        Watch(Instance instance) {
            this.instance = instance;
            this.question = flow.asks(instance)
                    ? Optional.of(new ConnectorAddressQuery(vertx, client, instance, limits.connect(), apiKey, metrics))
                    : Optional.empty();
        }

        void probe() {
            if (!probing && !stopped) {
                probing = true;
                vertx.cancelTimer(timer);
                leg = new Leg(vertx, instance, this, limits.connect(), Leg.Bounds.WHOLE);
                leg.send(client, HttpMethod.GET, "/health", MultiMap.caseInsensitiveMultiMap(), Buffer.buffer());
            }
        }

        void cancel() {
            vertx.cancelTimer(timer);
            if (leg != null) {
                leg.abort();
            }
        }

        @Override
        public void onHead(HttpClientResponse head) {
            status = head.statusCode();
        }

        @Override
        public void onChunk(Buffer chunk) {
            // Only the status counts.
        }

        @Override
        public void onEnd() {
            missed = 0;
            if (status == 200) {
                if (instance.markUp()) {
                    question.ifPresent(ConnectorAddressQuery::cameUp);
                }
                question.filter(ConnectorAddressQuery::isDue)
                        .ifPresentOrElse(due -> leg = due.ask(this::again), this::again);
            } else {
                instance.markDown("GET /health answers " + status);
                again();
            }
        }

        @Override
        public void onFailure(UpstreamFailure failure) {
            missed++;
            if (failure.kind() != Kind.TIMEOUT || missed >= MISSED_ANSWERS) {
                instance.markDown("GET /health: " + failure.reason());
            }
            again();
        }

        private void again() {
            probing = false;
            timer = vertx.setTimer(limits.probeInterval().toMillis(), due -> probe());
            probed.tryComplete();
        }
    }
}
