package baton.engine.core;

import baton.engine.ConnectorCall;
import baton.kv.Ticker;
import java.util.Comparator;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Exceptions of a connector, on either side and on any rank, and its calls that have not returned. Any thread. */
final class ConnectorFailures {
    private static final Logger LOG = LoggerFactory.getLogger(ConnectorFailures.class);

    private final AtomicBoolean any = new AtomicBoolean();
    private final AtomicLong notCounted = new AtomicLong();
    private final Ticker ticker;
    /** The open call of each thread. */
    private final Map<Thread, OpenCall> open = new ConcurrentHashMap<>();

    private record OpenCall(String method, long since) {}

    ConnectorFailures(Ticker ticker) {
        this.ticker = ticker;
    }

    /** Work that a connector does. */
    interface Call<T> {
        T run();
    }

    /**
     * Calls a connector. Records the exception that it throws, and returns {@code otherwise}. Errors of the JVM itself are thrown on: they
     * can occur on any thread, so switching the connector off would not help. An {@link InternalError} is the connector's, as a read of a
     * mapped file that no longer exists throws it.
     *
     * @param method for the log
     */
    <T> T guard(String method, T otherwise, Call<T> call) {
        Thread thread = Thread.currentThread();
        open.put(thread, new OpenCall(method, ticker.nanos()));
        try {
            return Objects.requireNonNull(call.run(), "it returned null");
        } catch (RuntimeException | Error e) {
            if (!isOfConnector(e)) {
                throw e;
            }
            failed(method, e);
            return otherwise;
        } finally {
            open.remove(thread);
        }
    }

    /** The call that has lasted longest, if there is one that has not returned. */
    Optional<ConnectorCall> longestCall() {
        long now = ticker.nanos();
        return open.entrySet().stream()
                .map(each -> new ConnectorCall(
                        each.getValue().method(),
                        each.getKey(),
                        (now - each.getValue().since()) / 1e9))
                .max(Comparator.comparingDouble(ConnectorCall::seconds));
    }

    /** Whether an exception of a connector is its own failure, not the JVM's. */
    boolean isOfConnector(Throwable e) {
        return !(e instanceof VirtualMachineError) || e instanceof InternalError;
    }

    void guard(String method, Runnable call) {
        guard(method, true, () -> {
            call.run();
            return true;
        });
    }

    private void failed(String method, Throwable e) {
        notCounted.incrementAndGet();
        if (any.compareAndSet(false, true)) {
            LOG.error(
                    "The connector's {} failed{}. The connector is switched off; requests go on without it until a restart",
                    method,
                    e instanceof LinkageError
                            ? ": it does not fit this version of Baton, and must be compiled against its module kv"
                            : "",
                    e);
        } else {
            LOG.debug("The connector's {} failed too", method, e);
        }
    }

    /** Whether something was thrown. */
    boolean any() {
        return any.get();
    }

    /** How often something was thrown since the last call. */
    long take() {
        return notCounted.getAndSet(0);
    }
}
