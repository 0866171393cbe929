package baton.connectors.nixl;

import java.util.Locale;

/** Who moves a request's bytes. */
enum TransferMode {
    /** The decode instance reads. */
    PULL,
    /** The prefill instance writes. */
    PUSH;

    /** The value of {@code transfer_mode}. */
    String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
