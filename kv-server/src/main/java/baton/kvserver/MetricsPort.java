package baton.kvserver;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.timeout.ReadTimeoutHandler;
import io.netty.handler.timeout.WriteTimeoutHandler;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;

/** HTTP: {@code GET /metrics} and {@code GET /health}. One request to a connection. */
final class MetricsPort {
    private static final int MOST_REQUEST = 8 << 10;
    private static final int TIMEOUT_SECONDS = 5;

    private final Channel listener;

    MetricsPort(EventLoopGroup loops, String host, int port, Supplier<String> metrics) throws IOException {
        listener = KvServer.bound(new ServerBootstrap()
                .group(loops)
                .channel(NioServerSocketChannel.class)
                .childHandler(new ChannelInitializer<>() {
                    @Override
                    protected void initChannel(Channel channel) {
                        channel.pipeline()
                                .addLast(
                                        new ReadTimeoutHandler(TIMEOUT_SECONDS),
                                        new WriteTimeoutHandler(TIMEOUT_SECONDS),
                                        new HttpServerCodec(),
                                        new HttpObjectAggregator(MOST_REQUEST),
                                        new Answers(metrics));
                    }
                })
                .bind(host, port));
    }

    int port() {
        return ((InetSocketAddress) listener.localAddress()).getPort();
    }

    private static final class Answers extends SimpleChannelInboundHandler<FullHttpRequest> {
        private final Supplier<String> metrics;

        private Answers(Supplier<String> metrics) {
            this.metrics = metrics;
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            boolean get = request.method().equals(HttpMethod.GET);
            FullHttpResponse answer = !get
                    ? answer(HttpResponseStatus.METHOD_NOT_ALLOWED, "only GET is answered\n", "text/plain")
                    : switch (request.uri()) {
                        case "/metrics" ->
                            answer(HttpResponseStatus.OK, metrics.get(), "text/plain; version=0.0.4; charset=utf-8");
                        case "/health" -> answer(HttpResponseStatus.OK, "{\"status\":\"ok\"}\n", "application/json");
                        default ->
                            answer(HttpResponseStatus.NOT_FOUND, "there are /metrics and /health\n", "text/plain");
                    };
            context.writeAndFlush(answer).addListener(ChannelFutureListener.CLOSE);
        }

        private static FullHttpResponse answer(HttpResponseStatus status, String text, String type) {
            FullHttpResponse answer = new DefaultFullHttpResponse(
                    HttpVersion.HTTP_1_1, status, Unpooled.copiedBuffer(text, StandardCharsets.UTF_8));
            answer.headers().set(HttpHeaderNames.CONTENT_TYPE, type);
            answer.headers()
                    .set(HttpHeaderNames.CONTENT_LENGTH, answer.content().readableBytes());
            answer.headers().set(HttpHeaderNames.CONNECTION, "close");
            return answer;
        }

        @Override
        @SuppressWarnings("deprecation") // the handler's own method is not
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            var _ = context.close();
        }
    }
}
