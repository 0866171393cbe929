package baton.router.upstream;

import baton.router.metrics.RouterMetrics;

/** Why a leg failed. It has no stack trace, as the cause is the instance and not this code. */
public final class UpstreamFailure extends Exception {

    /** Kinds of failures. */
    public enum Kind implements RouterMetrics.Label {
        /** No connection. */
        CONNECT,
        /** The connection ended before the answer did. */
        LOST,
        /** The instance takes no requests now. */
        REFUSED,
        /** A deadline passed. */
        TIMEOUT,
        /** The answer is an error, or malformed. */
        ANSWER,
        /** The client takes no more bytes. */
        CLIENT_STALLED,
        /** The instance is drained or stopping, so its streams go elsewhere. */
        LEAVING,
        /** The instance gives the stream to another one that has more room. */
        BALANCE;

        /** Whether a stream leaves an instance that has all of it. */
        public boolean isMove() {
            return this == LEAVING || this == BALANCE;
        }
    }

    private final transient Instance instance;
    private final Kind kind;
    private final String reason;
    private final boolean ofSlowInstance;

    public UpstreamFailure(Instance instance, Kind kind, String reason) {
        this(instance, kind, reason, false);
    }

    UpstreamFailure(Instance instance, Kind kind, String reason, boolean ofSlowInstance) {
        super(reason, null, false, false);
        this.instance = instance;
        this.kind = kind;
        this.reason = reason;
        this.ofSlowInstance = ofSlowInstance;
    }

    public Instance instance() {
        return instance;
    }

    public Kind kind() {
        return kind;
    }

    /** Whether a deadline passed at an instance that was up: it may have been computing a long answer. */
    public boolean isOfSlowInstance() {
        return ofSlowInstance;
    }

    /** Names the instance and the reason. */
    public String describe() {
        return instance + ": " + reason;
    }

    public String reason() {
        return reason;
    }

    /** HTTP status for a client: 503 where another try may find the instance, 502 otherwise. */
    public int status() {
        return kind == Kind.CONNECT || kind == Kind.REFUSED ? 503 : 502;
    }
}
