package baton.connectors.onesided;

import java.util.Locale;

/** Which side moves a request's blocks. */
public enum TransferMode {
    /** The decode instance reads. */
    PULL,
    /** The prefill instance writes. */
    PUSH;

    /** The value of {@code transfer_mode}. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }
}
