package baton.router;

import io.vertx.core.Vertx;
import io.vertx.core.http.HttpClient;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * What the exchanges of one event loop share.
 *
 * @param client this event loop's own, so that a leg never leaves its thread
 * @param running requests in flight in the whole router
 * @param bodies those of the whole router; a request gives back what its body took when it ends
 * @param logged whether each request has a line in the log
 */
record RouterContext(
        Vertx vertx,
        HttpClient client,
        RouterConfig config,
        HandoffFlow flow,
        InstanceSet prefills,
        InstanceSet decodes,
        HealthProbe probe,
        RouterMetrics metrics,
        AtomicInteger running,
        BodyMemory bodies,
        boolean logged) {}
