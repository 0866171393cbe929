package baton.router.policy;

import baton.router.upstream.Instance;

/** Counts the bytes of a prompt that its decode instance computes, as {@link Instance#localPrefillBytes}, until the first token. */
public final class LocalPrefillBytes implements LatencyMeasurement {
    private final Instance decode;
    private long bytes;

    /** @param bytes of JSON; 0 if it computes nothing */
    public LocalPrefillBytes(Instance decode, long bytes) {
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
