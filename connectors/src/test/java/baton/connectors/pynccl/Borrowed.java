package baton.connectors.pynccl;

import baton.kv.KvDevice;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import java.time.Duration;

/** A transport that its users cannot close. */
record Borrowed(WireTransport transport) implements WireTransport {
    @Override
    public String name() {
        return transport.name();
    }

    @Override
    public boolean reaches(KvDevice device) {
        return transport.reaches(device);
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        return transport.meet(host, port, rank, timeout);
    }

    @Override
    public Offer offer(String host) throws PipeException {
        return transport.offer(host);
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        return transport.join(id, host, timeout);
    }

    @Override
    public void close() {}
}
