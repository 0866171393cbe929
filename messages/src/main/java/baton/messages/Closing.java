package baton.messages;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The end of sockets, channels and selectors that are given up in any case. */
public final class Closing {
    private static final Logger log = LoggerFactory.getLogger(Closing.class);

    private Closing() {}

    /** Closes an object, if there is one; a failure is only logged. */
    public static void quietly(@Nullable AutoCloseable closeable) {
        try {
            if (closeable != null) {
                closeable.close();
            }
        } catch (Exception e) {
            log.debug("closing {}", closeable, e);
        }
    }
}
