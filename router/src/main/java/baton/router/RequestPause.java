package baton.router;

import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics.ContinuationOutcome;
import baton.router.upstream.Instance.Role;
import baton.router.upstream.UpstreamFailure;
import baton.router.upstream.UpstreamFailure.Kind;
import java.time.Duration;
import java.util.EnumMap;
import java.util.Map;

/**
 * From a failed leg of a request to the next byte of its answer. Instances that fail with a request one after the other may fail because of it, so only a few
 * get it. As long as no instance is left, the request waits. Confined to the request's event loop.
 */
final class RequestPause {
    /** Instances of a role that fail with the request. */
    private static final int MOST_FAILURES = 3;

    /**
     * Decode instances that fail with a whole answer, of which no byte says how far it has come, or while a prefill instance computes the prompt, so that they
     * have computed nothing of the request.
     */
    private static final int MOST_INNOCENT_FAILURES = 8;

    /** Connections that cannot be made. An instance that is up again by its health probe is tried again. */
    private static final int MOST_UNCONNECTED = 32;

    /** How long a request waits for an instance, as a multiple of the silence after which a stream continues elsewhere. */
    private static final int WAITS = 3;

    private static final long LOOK_AGAIN_MILLIS = 100;

    private final ProxiedRequest request;
    private final Kind reason;
    private final long since;
    private final Map<Role, Integer> failures = new EnumMap<>(Role.class);
    private int failuresBeforePrompt;
    private int unconnected;
    private long looks;
    private boolean waits;

    /** @param reason of the first failure */
    RequestPause(ProxiedRequest request, Kind reason) {
        this.request = request;
        this.reason = reason;
        this.since = request.report().now();
    }

    /** @param isPrefilling whether a prefill instance had the prompt at the time */
    void failed(UpstreamFailure failure, boolean isPrefilling) {
        waits = false;
        switch (failure.kind()) {
            case LOST, TIMEOUT -> {
                switch (failure.instance().role()) {
                    case PREFILL -> failures.merge(Role.PREFILL, 1, Integer::sum);
                    case DECODE -> {
                        if (isPrefilling) {
                            failuresBeforePrompt++;
                        } else {
                            failures.merge(Role.DECODE, 1, Integer::sum);
                        }
                        failures.remove(Role.PREFILL);
                    }
                }
                looks = 0;
            }
            case CONNECT -> unconnected++;
            case REFUSED, ANSWER, CLIENT_STALLED, LEAVING, BALANCE -> {}
        }
    }

    /** How many more instances of that role may fail with the request. */
    int left(Role role) {
        boolean isWhole = role == Role.DECODE && request.position().isEmpty();
        boolean mayFail = unconnected < MOST_UNCONNECTED && failuresBeforePrompt < MOST_INNOCENT_FAILURES;
        return (!mayFail ? 0 : isWhole ? MOST_INNOCENT_FAILURES : MOST_FAILURES) - failures.getOrDefault(role, 0);
    }

    /** Whether an instance has had the request. */
    boolean isLoss() {
        return looks > 0 || failuresBeforePrompt > 0 || !failures.isEmpty();
    }

    /**
     * Looks for an instance again, soon.
     *
     * @param lacking the role of which none is left
     * @param look not called once the request has ended
     * @return false if the request has waited for too long
     */
    boolean lookAgain(Role lacking, Runnable look) {
        Duration silence = request.context().config().limits().continueAfter().orElse(Duration.ZERO);
        if (looks * LOOK_AGAIN_MILLIS >= WAITS * silence.toMillis()) {
            return false;
        }
        looks++;
        if (!waits) {
            waits = true;
            request.metrics().count(RouterMetric.INSTANCE_WAITS, lacking);
            request.report().trace().step("waits for a " + lacking.label() + " instance");
        }
        request.vertx().setTimer(LOOK_AGAIN_MILLIS, _ -> {
            if (!request.isEnded()) {
                request.legs().forget();
                look.run();
            }
        });
        return true;
    }

    /** The stream goes on at another instance, or ends with an error. */
    void ends(ContinuationOutcome outcome) {
        request.metrics().count(RouterMetric.STREAMS_CONTINUED, reason, outcome);
        if (outcome == ContinuationOutcome.CONTINUED) {
            request.metrics().time(RouterMetric.STREAM_PAUSE, request.report().now() - since);
            request.report().trace().step("the stream goes on");
        }
    }
}
