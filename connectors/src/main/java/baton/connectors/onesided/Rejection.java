package baton.connectors.onesided;

import baton.kv.connector.Measurement;
import java.util.Locale;

/** Why a hand-off reference, or the blocks that it leads to, were not accepted. */
public enum Rejection {
    /** The owner has given the blocks to another request since, or is another incarnation. */
    STALE,
    /** The blocks were being written. */
    TORN,
    /** The checksums of the bytes are not the owner's. */
    CORRUPT,
    /** The reference is not as the owner made it. */
    FORGED,
    /** The reference is about another prompt, model or layout. */
    MISMATCH,
    /** The reference names a host that is not an allowed peer. */
    NOT_ALLOWED,
    /** Its owner has no checksums to verify the blocks with, and the settings require them. */
    UNVERIFIED,
    /** The reference names fewer blocks than its tokens need. */
    TRUNCATED,
    /** The reference names a block twice, or one that the owner does not have. */
    INVALID;

    /** The measurement of {@code count} rejections with this cause. */
    public Measurement measurement(int count) {
        return Measurement.count("baton:kv_handoff_rejected", count, "cause", label());
    }

    /** The value of the metric's label. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
