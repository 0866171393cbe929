package baton.server;

import baton.server.grpc.ProtoWriter;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientRequest;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpVersion;
import io.vertx.core.http.RequestOptions;
import io.vertx.core.parsetools.RecordParser;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Calls of gRPC over one connection of HTTP/2, and messages read without the server's code. */
final class GrpcClient implements AutoCloseable {
    private static final int PREFIX = 5;

    private final Vertx vertx = Vertx.vertx();
    private final HttpClient http;
    private final int port;

    GrpcClient(int port) {
        this.port = port;
        http = vertx.createHttpClient(
                new HttpClientOptions().setProtocolVersion(HttpVersion.HTTP_2).setHttp2ClearTextUpgrade(false));
    }

    /**
     * A message's fields by their numbers.
     *
     * @param fields numbers as {@link Long}, others as {@code byte[]}
     */
    record Message(Map<Integer, List<Object>> fields) {
        static Message of(byte[] bytes) {
            ByteBuffer in = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
            Map<Integer, List<Object>> fields = new HashMap<>();
            while (in.hasRemaining()) {
                long tag = varint(in);
                Object value = switch ((int) (tag & 7)) {
                    case 0 -> varint(in);
                    case 1 -> in.getLong();
                    case 2 -> {
                        byte[] content = new byte[(int) varint(in)];
                        in.get(content);
                        yield content;
                    }
                    case 5 -> (long) in.getInt();
                    default -> throw new AssertionError("wire type of " + tag);
                };
                fields.computeIfAbsent((int) (tag >>> 3), _ -> new ArrayList<>())
                        .add(value);
            }
            return new Message(fields);
        }

        private static long varint(ByteBuffer in) {
            long value = 0;
            for (int shift = 0; ; shift += 7) {
                byte next = in.get();
                value |= (next & 0x7fL) << shift;
                if (next >= 0) {
                    return value;
                }
            }
        }

        boolean has(int field) {
            return fields.containsKey(field);
        }

        private Object last(int field) {
            return fields.getOrDefault(field, List.of()).getLast();
        }

        long number(int field) {
            return (Long) last(field);
        }

        String text(int field) {
            return new String((byte[]) last(field), StandardCharsets.UTF_8);
        }

        Message message(int field) {
            return messages(field).getLast();
        }

        List<Message> messages(int field) {
            return fields.getOrDefault(field, List.of()).stream()
                    .map(content -> of((byte[]) content))
                    .toList();
        }

        /** Of a packed field. */
        List<Long> numbers(int field) {
            ByteBuffer in = ByteBuffer.wrap((byte[]) last(field));
            List<Long> numbers = new ArrayList<>();
            while (in.hasRemaining()) {
                numbers.add(varint(in));
            }
            return numbers;
        }

        /** Of a packed field. */
        List<Float> floats(int field) {
            ByteBuffer in = ByteBuffer.wrap((byte[]) last(field)).order(ByteOrder.LITTLE_ENDIAN);
            List<Float> floats = new ArrayList<>();
            while (in.hasRemaining()) {
                floats.add(in.getFloat());
            }
            return floats;
        }
    }

    /** A call that goes on. */
    static final class Call {
        private final BlockingQueue<Message> messages = new LinkedBlockingQueue<>();
        private final BlockingQueue<Map.Entry<Integer, String>> ends = new LinkedBlockingQueue<>();
        private final CountDownLatch closed = new CountDownLatch(1);
        private volatile boolean goneAway;
        private final HttpClientRequest request;

        private Call(HttpClientRequest request) {
            this.request = request;
            request.connection().goAwayHandler(_ -> goneAway = true).closeHandler(_ -> closed.countDown());
        }

        Message next() throws InterruptedException {
            return taken(messages, "message");
        }

        /** Status and message of the trailers. */
        Map.Entry<Integer, String> end() throws InterruptedException {
            return taken(ends, "end");
        }

        /** The one message of a call that succeeds. */
        Message answer() throws InterruptedException {
            Map.Entry<Integer, String> end = end();
            if (end.getKey() != 0) {
                throw new AssertionError("the call ended with " + end);
            }
            return next();
        }

        void cancel() {
            request.reset(8);
        }

        void awaitClosedConnection() throws InterruptedException {
            if (!closed.await(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS)) {
                throw new AssertionError("the connection was not closed");
            }
        }

        /** Whether the server said that it takes no more calls. */
        boolean goneAway() {
            return goneAway;
        }

        private static <T> T taken(BlockingQueue<T> queue, String what) throws InterruptedException {
            return FakeEngine.next(queue, "no " + what + " came");
        }
    }

    Call call(String method, ProtoWriter message, String... headers) throws Exception {
        byte[] bytes = message.toBytes();
        return send(
                method,
                Buffer.buffer().appendByte((byte) 0).appendInt(bytes.length).appendBytes(bytes),
                headers);
    }

    Call send(String method, Buffer body, String... headers) throws Exception {
        RequestOptions options = new RequestOptions()
                .setHost("127.0.0.1")
                .setPort(port)
                .setMethod(HttpMethod.POST)
                .setURI("/" + method)
                .putHeader("Content-Type", "application/grpc")
                .putHeader("te", "trailers");
        for (int i = 0; i < headers.length; i += 2) {
            options.putHeader(headers[i], headers[i + 1]);
        }
        HttpClientRequest request = http.request(options)
                .toCompletionStage()
                .toCompletableFuture()
                .get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
        Call call = new Call(request);
        request.response()
                .onSuccess(response -> {
                    RecordParser frames = RecordParser.newFixed(PREFIX);
                    boolean[] inMessage = {false};
                    frames.handler(part -> {
                        if (inMessage[0] || part.getInt(1) == 0) {
                            call.messages.add(Message.of(inMessage[0] ? part.getBytes() : new byte[0]));
                            frames.fixedSizeMode(PREFIX);
                            inMessage[0] = false;
                        } else {
                            frames.fixedSizeMode(part.getInt(1));
                            inMessage[0] = true;
                        }
                    });
                    response.handler(frames);
                    response.endHandler(_ -> call.ends.add(Map.entry(
                            Integer.parseInt(response.getTrailer("grpc-status")),
                            Objects.requireNonNullElse(response.getTrailer("grpc-message"), ""))));
                })
                .onFailure(failure -> call.ends.add(Map.entry(-1, failure.toString())));
        request.send(body);
        return call;
    }

    @Override
    public void close() throws Exception {
        vertx.close().toCompletionStage().toCompletableFuture().get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
    }
}
