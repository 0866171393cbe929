package baton.messages.http;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelPipeline;
import io.netty.handler.ssl.SslHandler;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpClientAgent;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientRequest;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpConnection;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.http.RequestOptions;
import io.vertx.core.http.StreamResetException;
import io.vertx.core.net.ClientSSLOptions;
import io.vertx.core.net.impl.ConnectionBase;
import java.util.Optional;
import java.util.function.Function;

/**
 * An HTTP client that keeps connections. A server may close an idle connection at the moment at which a request is sent on it. So a request goes again, once
 * and over a new connection, if its connection was used before and has ended without a byte of an answer. The server may have read the first one: the end of
 * the connection ends that.
 */
public final class KeptConnections {
    private final HttpClientAgent kept;
    private final HttpClientAgent fresh;

    private KeptConnections(HttpClientAgent kept, HttpClientAgent fresh) {
        this.kept = kept;
        this.fresh = fresh;
    }

    /**
     * Makes a client of HTTP/1.1.
     *
     * @param tls of connections with TLS; empty: as {@code options} say
     */
    public static KeptConnections open(
            Vertx vertx, HttpClientOptions options, PoolOptions pool, Optional<ClientSSLOptions> tls) {
        HttpClientAgent kept = client(vertx, options, pool, tls);
        return new KeptConnections(
                kept,
                options.isKeepAlive()
                        ? client(vertx, new HttpClientOptions(options).setKeepAlive(false), pool, tls)
                        : kept);
    }

    private static HttpClientAgent client(
            Vertx vertx, HttpClientOptions options, PoolOptions pool, Optional<ClientSSLOptions> tls) {
        var builder = vertx.httpClientBuilder().with(options).with(pool).withConnectHandler(Use::watch);
        tls.ifPresent(builder::with);
        return builder.build();
    }

    /**
     * Sends a request. A request that its sender resets does not go again.
     *
     * @param send writes the request on the connection that it got, and returns its answer; is called a second time if the request goes again
     */
    public Future<HttpClientResponse> send(
            RequestOptions options, Function<HttpClientRequest, Future<HttpClientResponse>> send) {
        // A client that is closed throws.
        return Future.succeededFuture(options).compose(kept::request).compose(request -> {
            Optional<Use> use = Use.begin(request.connection());
            return sendOn(request, send)
                    .recover(cause ->
                            use.filter(Use::isUnanswered).isPresent() && !(cause instanceof StreamResetException)
                                    ? fresh.request(options).compose(again -> sendOn(again, send))
                                    : Future.failedFuture(cause));
        });
    }

    private static Future<HttpClientResponse> sendOn(
            HttpClientRequest request, Function<HttpClientRequest, Future<HttpClientResponse>> send) {
        // The answer's future fails with the same cause; Vert.x logs an error that has no handler.
        request.exceptionHandler(_ -> {});
        return send.apply(request);
    }

    /** New connections use these certificates. Any thread. */
    public Future<Boolean> update(ClientSSLOptions certificates) {
        return kept.updateSSLOptions(certificates, true).compose(_ -> fresh.updateSSLOptions(certificates, true));
    }

    /** Ends all connections. */
    public Future<Void> close() {
        return kept.close().compose(_ -> fresh.close());
    }

    /** Requests and answers of one connection, which has one request at a time. Confined to its event loop. */
    private static final class Use extends ChannelInboundHandlerAdapter {
        private boolean used;
        /** The last request was not the first. */
        private boolean reused;

        private boolean answered;

        /** To be called before the connection's first request. */
        static void watch(HttpConnection connection) {
            if (connection instanceof ConnectionBase base) {
                ChannelPipeline pipeline = base.channel().pipeline();
                ChannelHandlerContext tls = pipeline.context(SslHandler.class);
                if (tls == null) {
                    pipeline.addFirst(new Use());
                } else {
                    // TLS has bytes of its own.
                    pipeline.addAfter(tls.name(), null, new Use());
                }
            }
        }

        /** Counts a request; empty for connections that are not watched. */
        static Optional<Use> begin(HttpConnection connection) {
            if (!(connection instanceof ConnectionBase base)) {
                return Optional.empty();
            }
            Optional<Use> use = Optional.ofNullable(base.channel().pipeline().get(Use.class));
            use.ifPresent(each -> {
                each.reused = each.used;
                each.used = true;
                each.answered = false;
            });
            return use;
        }

        boolean isUnanswered() {
            return reused && !answered;
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            answered = true;
            context.fireChannelRead(message);
        }
    }
}
