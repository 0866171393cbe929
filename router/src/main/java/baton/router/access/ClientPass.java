package baton.router.access;

import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;

/** One request's right to be served. Any thread. */
public final class ClientPass {
    private final Optional<String> client;
    private final Runnable whenReleased;
    private final AtomicBoolean released = new AtomicBoolean();

    /** @param client the name of the client's key; empty where clients need none */
    ClientPass(Optional<String> client, Runnable whenReleased) {
        this.client = client;
        this.whenReleased = whenReleased;
    }

    /** Of a request that needs no key. */
    public static ClientPass open() {
        return new ClientPass(Optional.empty(), () -> {});
    }

    /** The name of the client's key; empty where clients need none. */
    public Optional<String> client() {
        return client;
    }

    /** The request has ended. Has no effect the second time. */
    public void release() {
        if (released.compareAndSet(false, true)) {
            whenReleased.run();
        }
    }
}
