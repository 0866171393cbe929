package baton.store.lm;

import baton.store.remote.Destination;
import baton.store.remote.RemoteOperation;
import baton.store.remote.RemoteRequest;
import io.netty.channel.Channel;
import java.util.Optional;

/** A request of the protocol. */
abstract class LmRequest extends RemoteRequest {
    /** One that no operation waits for. */
    LmRequest() {
        super(LmWire.REQUEST_BYTES);
    }

    /**
     * @param cost bytes sent or replied, whichever is more
     * @param keys that it is for
     */
    LmRequest(RemoteOperation<LmRequest> of, long cost, int keys) {
        super(of, cost, keys);
    }

    /**
     * Writes it, without a flush.
     *
     * @param additions of the server
     * @return replies that it will have, at least one
     */
    protected abstract int write(Channel to, Additions additions);

    /**
     * The numbers of a reply.
     *
     * @param index of the reply
     * @return the destination of the bytes that follow the reply, of just as many bytes; empty: they are dropped
     */
    protected abstract Optional<Destination> reply(int index, LmReply reply);

    /** The bytes after a reply are in place. */
    protected void received(int index) {}

    /** The bytes of a reply that are read first, so that the rest can be read directly into its place. */
    protected int headBytes() {
        return 0;
    }

    /** Whether the server holds a value for it once its reply has come, which is to be freed when the request is over. */
    protected boolean holds() {
        return false;
    }
}
