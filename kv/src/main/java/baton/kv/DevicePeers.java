package baton.kv;

import java.io.IOException;
import java.util.List;

/** Shares a device's pool with other processes of this host, and opens the pools of those. Safe for use by several threads. */
public interface DevicePeers {
    int MOST_EXPORTED_BYTES = 250;

    /**
     * Describes the pool to processes of this host, of this user, while it is allocated. At most {@link #MOST_EXPORTED_BYTES}. The pool is to be
     * freed after they have closed it: otherwise CUDA defines no behavior.
     */
    byte[] exported();

    /**
     * Opens the pool of another process, or of another user of the device in this one.
     *
     * @param exported of the other pool
     * @throws IOException if it cannot be opened here, as one on another device
     */
    PeerPool open(byte[] exported) throws IOException;

    /**
     * Some bytes to copy.
     *
     * @param from offset in the peer's pool
     * @param to offset in the own pool
     */
    record Copy(long from, long to, long bytes) {}

    /** A pool that is opened. It is closed when no copy is under way, before the own pool is freed. */
    interface PeerPool extends AutoCloseable {
        /**
         * Starts to copy from it to the own pool, within the device.
         *
         * @return passed when the bytes are there
         */
        KvFence copy(List<Copy> copies);

        @Override
        void close();
    }
}
