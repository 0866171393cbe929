package baton.transfer.mooncake;

import baton.kv.KvDevice;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.Function;

/** An engine of the library. After {@link #close} its methods do nothing, as if the engine refused. Any thread. */
final class EngineHandle implements AutoCloseable {
    private final MooncakeApi api;
    private final MemorySegment engine;
    /** Held for reading by calls, so that the engine is not destroyed meanwhile. */
    private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock();

    private boolean closed;

    /** @throws TransferException if it does not start */
    EngineHandle(MooncakeApi api, String metadata, String name, EngineSettings settings) throws TransferException {
        this.api = api;
        this.engine = api.create(metadata, name, settings.protocol(), settings.device());
    }

    private <T> T with(T otherwise, Function<MemorySegment, T> call) {
        lock.readLock().lock();
        try {
            return closed ? otherwise : call.apply(engine);
        } finally {
            lock.readLock().unlock();
        }
    }

    String localName() {
        return with("", api::localName);
    }

    /** Negative if that fails. */
    int open(String segment) {
        return with(-1, handle -> api.open(handle, segment));
    }

    /** @return 0, or an error */
    int register(MemorySegment memory, Optional<KvDevice> device) {
        return with(-1, handle -> api.register(handle, memory, device));
    }

    /** @return 0, or an error */
    int unregister(MemorySegment memory) {
        return with(0, handle -> api.unregister(handle, memory));
    }

    Optional<Long> submit(Operation operation, int segment, List<Range> ranges) {
        return with(Optional.empty(), handle -> api.submit(handle, operation, segment, ranges));
    }

    MooncakeApi.Status status(long batch, int request) {
        return with(MooncakeApi.Status.FAILED, handle -> api.status(handle, batch, request));
    }

    void free(long batch) {
        boolean unusedFreed = with(false, handle -> {
            api.free(handle, batch);
            return true;
        });
    }

    List<Notification> takeNotifications() {
        return with(List.of(), api::takeNotifications);
    }

    /** Ends its threads and closes its ports. */
    @Override
    public void close() {
        lock.writeLock().lock();
        try {
            if (!closed) {
                closed = true;
                api.destroy(engine);
            }
        } finally {
            lock.writeLock().unlock();
        }
    }
}
