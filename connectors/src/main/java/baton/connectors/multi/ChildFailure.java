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
     * Calls a child. Records the throwable that it throws, and returns {@code otherwise}. Errors of the JVM itself are thrown on, except an
     * {@link InternalError}, which a read of a truncated mapped file throws.
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
