package baton.router;

import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;

/** Where the answer to a request goes: to the client, or into the answer to several prompts. Confined to the client's event loop. */
interface Answer {
    MultiMap headers();

    int status();

    void status(int status);

    /** The length is not known when the head is sent. */
    void chunked();

    /** Whether more than is good waits to be taken. */
    boolean isFull();

    /** Calls once there is room again. */
    void whenDrained(Runnable drained);

    /** Calls {@code left} when the client has left; may do so after the answer's end, too. */
    void whenLeft(Runnable left);

    void write(Buffer bytes);

    void end(Buffer bytes);

    /** Breaks off. */
    void reset();

    /** An answer to a client. */
    static Answer to(HttpServerResponse client) {
        return new Answer() {
            @Override
            public MultiMap headers() {
                return client.headers();
            }

            @Override
            public int status() {
                return client.getStatusCode();
            }

            @Override
            public void status(int status) {
                client.setStatusCode(status);
            }

            @Override
            public void chunked() {
                client.setChunked(true);
            }

            @Override
            public boolean isFull() {
                return client.writeQueueFull();
            }

            @Override
            public void whenDrained(Runnable drained) {
                client.drainHandler(_ -> drained.run());
            }

            @Override
            public void whenLeft(Runnable left) {
                client.closeHandler(_ -> left.run());
                client.exceptionHandler(_ -> left.run());
            }

            @Override
            public void write(Buffer bytes) {
                client.write(bytes);
            }

            @Override
            public void end(Buffer bytes) {
                client.end(bytes);
            }

            @Override
            public void reset() {
                client.reset();
            }
        };
    }
}
