package baton.router;

/** Why a leg did not give the answer it should have. Carries no stack: it tells of the other side, not of this code. */
final class UpstreamFailure extends Exception {

    /** What went wrong. */
    enum Kind {
        /** No connection. */
        CONNECT,
        /** The connection ended before the answer did. */
        LOST,
        /** It takes no requests now. */
        REFUSED,
        /** A deadline passed. */
        TIMEOUT,
        /** The answer is an error or not what it should be. */
        ANSWER,
        /** The client takes no more bytes. */
        CLIENT_STALLED
    }

    private final transient Instance instance;
    private final Kind kind;
    private final String reason;

    UpstreamFailure(Instance instance, Kind kind, String reason) {
        super(reason, null, false, false);
        this.instance = instance;
        this.kind = kind;
        this.reason = reason;
    }

    Instance instance() {
        return instance;
    }

    Kind kind() {
        return kind;
    }

    /** Names the instance and the reason. */
    String describe() {
        return instance + ": " + reason;
    }

    String reason() {
        return reason;
    }

    /** HTTP status for a client: 503 where another try may find the instance, 502 otherwise. */
    int status() {
        return kind == Kind.CONNECT || kind == Kind.REFUSED ? 503 : 502;
    }
}
