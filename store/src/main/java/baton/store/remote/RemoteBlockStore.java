package baton.store.remote;

import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import java.util.List;

/**
 * Values at a server, each with a {@link ValueHeader} before it.
 *
 * @param <R> requests of the protocol
 */
public abstract class RemoteBlockStore<R extends RemoteRequest> implements BlockStore {
    private final String name;
    private final StoreFormat format;
    protected final ValueHeader header;
    protected final StoreCounters counters;
    protected final RemoteClient<R> client;

    protected RemoteBlockStore(String name, StoreFormat format, StoreCounters counters, RemoteClient<R> client) {
        this.name = name;
        this.format = format;
        this.header = new ValueHeader(format);
        this.counters = counters;
        this.client = client;
    }

    @Override
    public final String name() {
        return name;
    }

    @Override
    public final StoreFormat format() {
        return format;
    }

    /** Whether the server can be asked at present. */
    public final boolean isConnected() {
        return client.isUsable();
    }

    @Override
    public final List<StoreEvent> takeEvents() {
        return counters.takeEvents();
    }

    @Override
    public final List<Measurement> takeMeasurements() {
        return counters.takeMeasurements(client.usable());
    }

    @Override
    public final void close() {
        client.close();
    }
}
