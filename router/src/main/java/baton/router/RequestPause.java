package baton.router;

import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics.ContinuationOutcome;
import baton.router.upstream.Instance.Role;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import java.time.Duration;

/**
 * From a failed leg of a request to the next byte of its answer. Instances that fail with a request one after the other may fail because of it, so only a few
 * get it. As long as no instance is left, the request waits. Confined to the request's event loop.
 */
final class RequestPause {
    /** Failures of instances of a role that may be attributed to the request. */
    private static final int MOST_FAILURES = 3;

    /**
     * Failures of decode instances that cannot be attributed to the request: the progress of a whole answer without token ids is not visible, and while a
     * prefill instance computes the prompt, decode has computed nothing.
     */
    private static final int MOST_UNATTRIBUTED_FAILURES = 8;

    /** Connections that cannot be made. An instance that is up again by its health probe is tried again. */
    private static final int MOST_UNCONNECTED = 32;

    /** How long a request waits for an instance, as a multiple of the silence after which a stream continues elsewhere. */
    private static final int WAITS = 3;

    /** The shortest time between two looks for an instance. As thousands of requests may wait, it becomes an eighth of the wait, and at most a second. */
    private static final long LOOK_AGAIN_MILLIS = 100;

    private static final long MOST_MILLIS = 1000;
    private static final int PART_OF_WAIT = 8;

    private final ProxiedRequest request;
    private final Kind reason;
    private final long since;
    /** Whether an answer has begun that is to continue. */
    private boolean hasBegun;

    private int prefillFailures;
    private int decodeFailures;
    private int failuresBeforePrompt;
    private int unconnected;
    private long waitedMillis;
    private boolean waits;

    /** @param reason of the first failure */
    RequestPause(ProxiedRequest request, Kind reason) {
        this.request = request;
        this.reason = reason;
        this.since = request.report().now();
        this.hasBegun = request.hasBegun();
    }

    /** @param isPrefilling whether a prefill instance had the prompt at the time */
    void failed(UpstreamFailure failure, boolean isPrefilling) {
        waits = false;
        switch (failure.kind()) {
            case LOST, TIMEOUT -> {
                waitedMillis = 0;
                switch (failure.instance().role()) {
                    case PREFILL -> prefillFailures++;
                    case DECODE -> {
                        prefillFailures = 0;
                        if (isPrefilling) {
                            failuresBeforePrompt++;
                        } else {
                            decodeFailures++;
                        }
                    }
                }
            }
            case CONNECT -> unconnected++;
            case REFUSED, ANSWER, CLIENT_STALLED, LEAVING, BALANCE -> {}
        }
    }

    /** How many more instances of that role may fail with the request. */
    int failuresLeft(Role role) {
        if (unconnected >= MOST_UNCONNECTED || failuresBeforePrompt >= MOST_UNATTRIBUTED_FAILURES) {
            return 0;
        }
        return switch (role) {
            case PREFILL -> MOST_FAILURES - prefillFailures;
            case DECODE ->
                (request.continuation()
                                        .filter(StreamContinuation::showsProgress)
                                        .isPresent()
                                ? MOST_FAILURES
                                : MOST_UNATTRIBUTED_FAILURES)
                        - decodeFailures;
        };
    }

    /** Whether an instance has had the request. */
    boolean isLoss() {
        return waitedMillis + prefillFailures + decodeFailures + failuresBeforePrompt > 0;
    }

    /** How long the request waits for an instance. */
    Duration longestWait() {
        return request.context()
                .config()
                .limits()
                .continueAfter()
                .orElse(Duration.ZERO)
                .multipliedBy(WAITS);
    }

    /**
     * Looks for an instance again, soon.
     *
     * @param lacking the role of which none is left
     * @param look not called once the request has ended
     * @return false if the request has waited for too long
     */
    boolean lookAgain(Role lacking, Runnable look) {
        if (waitedMillis >= longestWait().toMillis()) {
            return false;
        }
        long next = Math.clamp(waitedMillis / PART_OF_WAIT, LOOK_AGAIN_MILLIS, MOST_MILLIS);
        waitedMillis += next;
        if (!waits) {
            waits = true;
            request.metrics().count(RouterMetric.INSTANCE_WAITS, lacking);
            request.report().trace().step("waits for a " + lacking.label() + " instance");
        }
        request.vertx().setTimer(next, _ -> {
            if (!request.isEnded()) {
                request.legs().forget();
                look.run();
            }
        });
        return true;
    }

    /** An answer goes on at another instance, begins anew, or ends with an error. */
    void ends(ContinuationOutcome outcome) {
        if (!hasBegun) {
            return;
        }
        hasBegun = false;
        request.metrics().count(RouterMetric.STREAMS_CONTINUED, reason, outcome);
        if (outcome == ContinuationOutcome.CONTINUED) {
            request.metrics().time(RouterMetric.STREAM_PAUSE, request.report().now() - since);
            request.report().trace().step("the answer goes on");
        }
    }
}
