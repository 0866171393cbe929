package baton.connectors.nixl;

import java.util.Locale;
import java.util.regex.Pattern;

/** Who moves the bytes. */
enum TransferMode {
    /** The decode instance reads. */
    PULL,
    /** The prefill instance writes. */
    PUSH;

    private static final Pattern RANDOM_SUFFIX = Pattern.compile("-[0-9a-f]{8}$");

    /** The value of {@code transfer_mode}. */
    String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** What the ids of a request's two legs have in common: each instance may have added a random end of its own. */
    static String commonId(String requestId) {
        return RANDOM_SUFFIX.matcher(requestId).replaceFirst("");
    }
}
