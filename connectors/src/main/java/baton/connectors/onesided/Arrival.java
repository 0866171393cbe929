package baton.connectors.onesided;

import java.util.Optional;

/** A load's blocks on their way into this rank's memory: read by this rank, or written by peers. */
public interface Arrival {
    /**
     * Goes on as far as possible.
     *
     * @param stop why the load is given up, if it is: then nothing is to write to the blocks any more
     * @return true if it is over: nothing writes to the blocks, and if it has failed, nothing reads them
     */
    boolean advance(Optional<String> stop, long now);

    /** Why not all blocks are here, once it is over. */
    Optional<String> failure();

    /** Returns when nothing reads the blocks any more. The agent is closed. */
    void await();
}
