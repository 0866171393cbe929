package baton.connectors.nixl;

import java.util.Locale;

/** Why a hand-off reference, or what it led to, was not accepted. */
enum Rejection {
    /** The owner has given the blocks to others since, or is in another life. */
    STALE,
    /** The blocks were being written. */
    TORN,
    /** The bytes are not those that the owner sealed. */
    CORRUPT,
    /** The reference is not as the owner made it. */
    FORGED,
    /** It is about another prompt, model or layout. */
    MISMATCH,
    /** It leads to a host that is not an allowed peer. */
    NOT_ALLOWED,
    /** It names fewer blocks than its tokens need. */
    TRUNCATED,
    /** It names a block twice, or one that the owner does not have. */
    INVALID;

    /** The value of the metric's label. */
    String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
