package baton.store.redis;

import baton.store.StoreTask;
import baton.store.remote.Breaker;
import baton.store.remote.Failure;
import baton.store.remote.RemoteOperation;
import java.util.Optional;

/** An operation that is not begun while the server refuses its kind of command. */
abstract class RedisOperation extends RemoteOperation<RedisRequest> {
    protected final RedisClient redis;
    private final Breaker breaker;

    /**
     * @param keys of the task
     * @param bytes that it counts for while it is in flight
     */
    RedisOperation(RedisClient redis, Breaker breaker, StoreTask task, int keys, long bytes) {
        super(redis.remote(), task, keys, bytes);
        this.redis = redis;
        this.breaker = breaker;
    }

    @Override
    protected final Optional<Failure> refusal() {
        return breaker.admits() ? Optional.empty() : Optional.of(Failure.PAUSED);
    }

    /** The server has answered a command of this kind. */
    final void answered() {
        breaker.succeeded();
    }
}
