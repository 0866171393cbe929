package baton.transfer.embedded;

import baton.kv.DevicePeers;
import baton.kv.KvFence;
import baton.memory.ParallelCopier.Copy;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;

/** Copies within a device, from regions of peers to those of this process, on a thread of its own. */
final class DeviceCopies implements AutoCloseable {
    static final String OUT_OF_REACH =
            "memory of a device is reached only by a peer on the same host with memory of the same device,"
                    + " and not with transport=tcp; otherwise kv_buffer_device must be cpu on the device's side";

    /** Ranges of a piece. A transfer that is over waits for the piece that the device copies. */
    private static final int MOST_AT_ONCE = 1024;

    private final ExecutorService executor;

    /** The memory that a transfer touches, of both sides as far as this process maps it. */
    enum Where {
        HOST,
        DEVICE,
        BOTH;

        /** @param mapped whether the bytes go from memory to memory, without the connection */
        boolean isReachable(boolean mapped) {
            return this == HOST || this == DEVICE && mapped;
        }
    }

    DeviceCopies(String name) {
        // It has a thread from the first copy on.
        this.executor = Executors.newSingleThreadExecutor(
                Thread.ofPlatform().daemon().name(name).factory());
    }

    /** @param touched as of {@link LocalRanges} */
    static Where where(Set<Object> touched) {
        boolean host = false;
        boolean device = false;
        for (Object part : touched) {
            switch (part) {
                case MemoryRegistry.Registered own when own.peers().isPresent() -> device = true;
                case PeerMemory.Mapped peer when peer.isOfDevice() -> device = true;
                case WriteGrant _ -> {}
                default -> host = true;
            }
        }
        return device && host ? Where.BOTH : device ? Where.DEVICE : Where.HOST;
    }

    /** Starts copies of {@link Where#DEVICE}; the transfer touches the regions. */
    void start(InFlightTransfer transfer, List<Copy> copies) {
        try {
            executor.execute(() -> copyAll(transfer, copies));
        } catch (RejectedExecutionException _) {
            transfer.rejected();
        }
    }

    private static void copyAll(InFlightTransfer transfer, List<Copy> copies) {
        try {
            for (int from = 0; from < copies.size(); from += MOST_AT_ONCE) {
                if (!transfer.enter()) {
                    return;
                }
                try {
                    copy(transfer.touched(), copies.subList(from, Math.min(copies.size(), from + MOST_AT_ONCE)));
                } finally {
                    transfer.exit();
                }
            }
            transfer.copied();
        } catch (IOException | RuntimeException e) {
            transfer.failed(e);
        }
    }

    private static void copy(Set<Object> touched, List<Copy> copies) throws IOException {
        Map<DevicePeers.PeerPool, List<DevicePeers.Copy>> byPool = new LinkedHashMap<>();
        for (Object part : touched) {
            if (part instanceof MemoryRegistry.Registered own) {
                for (Object other : touched) {
                    if (other instanceof PeerMemory.Mapped peer) {
                        List<DevicePeers.Copy> between = between(own, peer, copies);
                        if (!between.isEmpty()) {
                            byPool.put(peer.open(own.peers().orElseThrow()), between);
                        }
                    }
                }
            }
        }
        copyEach(byPool.entrySet().iterator());
    }

    /** Returns, or throws, when no copy that was started is under way. */
    private static void copyEach(Iterator<Map.Entry<DevicePeers.PeerPool, List<DevicePeers.Copy>>> pools) {
        if (pools.hasNext()) {
            Map.Entry<DevicePeers.PeerPool, List<DevicePeers.Copy>> pool = pools.next();
            KvFence fence = pool.getKey().copy(pool.getValue());
            try {
                copyEach(pools);
            } finally {
                fence.await();
            }
        }
    }

    private static List<DevicePeers.Copy> between(
            MemoryRegistry.Registered own, PeerMemory.Mapped peer, List<Copy> copies) {
        List<DevicePeers.Copy> found = new ArrayList<>();
        for (Copy copy : copies) {
            peer.offset(copy.from())
                    .ifPresent(from -> own.offset(copy.to())
                            .ifPresent(to -> found.add(new DevicePeers.Copy(from, to, copy.bytes()))));
        }
        return found;
    }

    @Override
    public void close() {
        executor.shutdown();
    }
}
