package baton.transfer.mooncake;

import baton.memory.Gate;
import baton.transfer.Transfer;

/**
 * Something that moves bytes of registered memory over sockets. A thread that is inside the gate may wait for a peer there; {@link #abort}
 * closes its socket, so that it leaves at once.
 *
 * @param <E> how it ended
 */
abstract class MemoryUse<E> extends Gate<E> {
    /** Ends it and closes its sockets. Does not wait; {@link #awaitEmpty} does. */
    abstract void abort(Transfer.Cause cause, String message);
}
