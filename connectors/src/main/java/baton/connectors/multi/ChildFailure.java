package baton.connectors.multi;

import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Whether a child has thrown something, on one side: of all ranks' workers, or of the scheduler. Any thread. */
final class ChildFailure {
    private static final Logger LOG = LoggerFactory.getLogger(ChildFailure.class);

    private final String label;
    private final AtomicBoolean any = new AtomicBoolean();

    ChildFailure(String label) {
        this.label = label;
    }

    boolean any() {
        return any.get();
    }

    /**
     * Does a child's work. What it throws is noted, and {@code otherwise} returned. What says that the JVM itself has failed is thrown
     * on; an {@link InternalError} does not, as a read of a mapped file that is cut short throws it.
     */
    <T> T guard(String method, T otherwise, Supplier<T> call) {
        try {
            return Objects.requireNonNull(call.get(), "it returned null");
        } catch (RuntimeException | Error e) {
            if (e instanceof VirtualMachineError && !(e instanceof InternalError)) {
                throw e;
            }
            if (any.compareAndSet(false, true)) {
                LOG.error(
                        "MultiConnector: {} of {} failed. {} is switched off until a restart; the other connectors go on",
                        method,
                        label,
                        label,
                        e);
            } else {
                LOG.debug("MultiConnector: {} of {} failed too", method, label, e);
            }
            return otherwise;
        }
    }

    void guard(String method, Runnable call) {
        guard(method, true, () -> {
            call.run();
            return true;
        });
    }
}
