package baton.router.policy;

/** Takes the latencies that a streamed request's client sees. Confined to the request's event loop. */
public interface LatencyMeasurement {
    /** A measurement that is not recorded. */
    LatencyMeasurement NONE = new LatencyMeasurement() {
        @Override
        public void firstToken(long nanos) {}

        @Override
        public void gap(long nanos) {}

        @Override
        public void ended() {}
    };

    /** @param nanos since the request came */
    void firstToken(long nanos);

    /** @param nanos between two events */
    void gap(long nanos);

    /** The request has ended, or is tried anew. May be called several times. */
    void ended();
}
