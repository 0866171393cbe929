package baton.router;

import io.vertx.core.Future;
import java.util.concurrent.Callable;

/**
 * The memory of a request's body, which is given back once the request has ended and nothing reads the body any more. Confined to the request's event
 * loop.
 */
final class HeldBody {
    private final RouterContext.InFlight inFlight;
    /** Bytes of the body as received, held in {@link RouterContext.InFlight#bodies}; 0 once they are given back. */
    private int held;

    private int readers;
    private boolean over;

    HeldBody(RouterContext.InFlight inFlight, int held) {
        this.inFlight = inFlight;
        this.held = held;
    }

    /** Runs a task that reads the request's bodies. It may yet begin after the request has ended. */
    <T> Future<T> work(long bytes, Callable<T> task) {
        return reading(inFlight.worker().run(bytes, task));
    }

    /** Holds the body until the result is there. */
    <T> Future<T> reading(Future<T> result) {
        readers++;
        result.onComplete(_ -> {
            readers--;
            giveBackWhenOver();
        });
        return result;
    }

    /** The request has ended. */
    void over() {
        over = true;
        giveBackWhenOver();
    }

    private void giveBackWhenOver() {
        if (over && readers == 0) {
            inFlight.bodies().giveBack(held);
            held = 0;
        }
    }
}
