package baton.router.upstream;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.messages.http.KeptConnections;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.PoolOptions;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class LegTest {
    private final Ticker ticker = Ticker.system();

    /** The receiver decides by the state at that time. */
    @Test
    void aLegLeavesAHungInstanceAlthoughAProbeIsAnsweredJustThen() throws Exception {
        Vertx vertx = Vertx.vertx();
        try (ServerSocket silent = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            Instance instance =
                    new Instance(Instance.Role.DECODE, URI.create("http://127.0.0.1:" + silent.getLocalPort()));
            instance.markDown("GET /health: no answer");
            instance.silentSince(OptionalLong.of(ticker.nanos() - TimeUnit.HOURS.toNanos(1)));
            CompletableFuture<UpstreamFailure> failed = new CompletableFuture<>();
            Leg.Receiver receiver = new Leg.Receiver() {
                @Override
                public void onHead(Leg leg, HttpClientResponse head) {}

                @Override
                public void onChunk(Leg leg, Buffer chunk) {}

                @Override
                public void onEnd() {}

                @Override
                public void onFailure(UpstreamFailure failure) {
                    failed.complete(failure);
                }

                @Override
                public boolean waitsOn(boolean isHung) {
                    instance.markUp();
                    return !isHung;
                }
            };
            vertx.runOnContext(_ -> {
                UpstreamClient upstream = new UpstreamClient(
                        vertx,
                        KeptConnections.open(vertx, new HttpClientOptions(), new PoolOptions(), Optional.empty()),
                        ticker);
                Leg leg = new Leg(
                        upstream, instance, receiver, Duration.ofHours(1), Leg.Bounds.SILENCE, Optional.empty());
                leg.send(HttpMethod.GET, "/", MultiMap.caseInsensitiveMultiMap(), Buffer.buffer());
                leg.within(Duration.ofMillis(50));
            });

            UpstreamFailure failure = failed.get(60, TimeUnit.SECONDS);
            assertThat(failure.kind()).isEqualTo(UpstreamFailure.Kind.TIMEOUT);
            assertThat(failure.isOfSlowInstance()).isFalse();
        } finally {
            vertx.close().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
        }
    }
}
