package baton.router.policy;

import baton.router.upstream.Instance;

/** The part of a prompt that the decode instance computes before the first token. */
public final class RestOfPrompt implements LatencyMeasurement {
    private final Instance decode;
    private long bytes;

    /** @param bytes of JSON; 0 if it computes nothing */
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
