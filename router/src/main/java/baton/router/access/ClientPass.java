package baton.router.access;

import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.LongConsumer;

/** One request's right to be served. Any thread. */
public final class ClientPass {
    private final Optional<String> client;
    private final Runnable whenReleased;
    private final Optional<LongConsumer> tokens;
    private final Optional<CacheSalt> salt;
    private final AtomicBoolean released = new AtomicBoolean();

    /**
     * @param client the name of the client's key; empty where clients need none
     * @param tokens takes how many tokens requests took; empty if the key has no limit of them
     * @param salt empty if the request shares cached blocks with all that have no salt
     */
    ClientPass(
            Optional<String> client, Runnable whenReleased, Optional<LongConsumer> tokens, Optional<CacheSalt> salt) {
        this.client = client;
        this.whenReleased = whenReleased;
        this.tokens = tokens;
        this.salt = salt;
    }

    /** The pass of a request that needs no key. */
    public static ClientPass open() {
        return new ClientPass(Optional.empty(), () -> {}, Optional.empty(), Optional.empty());
    }

    /** The name of the client's key; empty where clients need none. */
    public Optional<String> client() {
        return client;
    }

    /** The salt that separates the request's cached blocks; empty if it shares them with all that have no salt. */
    public Optional<CacheSalt> salt() {
        return salt;
    }

    /** The pass of a part of the request, which releases nothing. */
    public ClientPass ofPart() {
        return new ClientPass(client, () -> {}, tokens, salt);
    }

    /** Whether the tokens of the request have to be counted. */
    public boolean countsTokens() {
        return tokens.isPresent();
    }

    /** The request took so many tokens. */
    public void took(long count) {
        tokens.ifPresent(taken -> taken.accept(count));
    }

    /** The request has ended. Has no effect the second time. */
    public void release() {
        if (released.compareAndSet(false, true)) {
            whenReleased.run();
        }
    }
}
