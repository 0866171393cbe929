package baton.router.policy;

import baton.router.upstream.Instance;

/** The rest of a split prompt, which the decode instance computes before the first token. */
public final class RestOfPrompt implements LatencyMeasurement {
    private final Instance decode;
    private long bytes;

    /** @param bytes of JSON */
    public RestOfPrompt(Instance decode, long bytes) {
        this.decode = decode;
        this.bytes = bytes;
        decode.addLocalPrefill(bytes);
    }

    @Override
    public void firstToken(long nanos) {
        ended();
    }

    @Override
    public void gap(long nanos) {}

    @Override
    public void ended() {
        decode.addLocalPrefill(-bytes);
        bytes = 0;
    }
}
