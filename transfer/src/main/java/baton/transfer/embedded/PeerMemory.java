package baton.transfer.embedded;

import baton.kv.DevicePeers;
import baton.memory.MappableMemory;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A peer's regions, mapped into this process to be read as far as they can be. Those of a device are opened by the first transfer. */
final class PeerMemory {
    private static final Logger LOG = LoggerFactory.getLogger(PeerMemory.class);

    private final Metadata peer;
    private final boolean sameSystem;
    private final AtomicLong mappedBytes;

    @GuardedBy("this")
    private final NavigableMap<Long, Mapped> mapped = new TreeMap<>();

    @GuardedBy("this")
    private final Set<Metadata.Exposed> refused = new HashSet<>();

    @GuardedBy("this")
    private long revision;

    @GuardedBy("this")
    private boolean closed;

    /**
     * @param sameSystem whether mapping is worth trying
     * @param mappedBytes the bytes of all peers' mappings together
     */
    PeerMemory(Metadata peer, boolean sameSystem, AtomicLong mappedBytes) {
        this.peer = peer;
        this.sameSystem = sameSystem;
        this.mappedBytes = mappedBytes;
        this.revision = Long.MIN_VALUE;
    }

    /** A region of the peer. */
    static final class Mapped {
        private final Metadata.Exposed region;
        private final MemorySegment memory;
        private final Arena arena;
        private final AtomicLong mappedBytes;

        @GuardedBy("this")
        private final Map<DevicePeers, DevicePeers.PeerPool> opened = new HashMap<>();

        private Mapped(Metadata.Exposed region, MemorySegment memory, Arena arena, AtomicLong mappedBytes) {
            this.region = region;
            this.memory = memory;
            this.arena = arena;
            this.mappedBytes = mappedBytes;
            mappedBytes.addAndGet(mappedBytes());
        }

        private long mappedBytes() {
            return region.isOfDevice() ? 0 : memory.byteSize();
        }

        boolean isOfDevice() {
            return region.isOfDevice();
        }

        /** The region of a device, opened to be copied from. */
        synchronized DevicePeers.PeerPool open(DevicePeers own) throws IOException {
            DevicePeers.PeerPool known = opened.get(own);
            if (known != null) {
                return known;
            }
            DevicePeers.PeerPool pool = own.open(HexFormat.of().parseHex(region.device()));
            opened.put(own, pool);
            return pool;
        }

        /** Offset of some memory in the region, if it is there. */
        OptionalLong offset(MemorySegment part) {
            return region.offset(part);
        }

        /** Bytes at an address of the peer, if they are in this region. */
        Optional<MemorySegment> slice(long address, long bytes) {
            return region.holds(address, bytes)
                    ? Optional.of(memory.asSlice(address - region.address(), bytes))
                    : Optional.empty();
        }

        /** Unmaps it; nothing touches it any more. A device that does not close its pool is logged. */
        synchronized void close() {
            opened.values().forEach(Mapped::close);
            arena.close();
            mappedBytes.addAndGet(-mappedBytes());
        }

        private static void close(DevicePeers.PeerPool pool) {
            try {
                pool.close();
            } catch (RuntimeException e) {
                LOG.warn("a peer's pool of a device cannot be closed, and stays mapped: {}", e.toString());
            }
        }
    }

    /** Whether nothing is mapped. */
    synchronized boolean isEmpty() {
        return mapped.isEmpty();
    }

    /** The region that holds an address of the peer. */
    synchronized Optional<Mapped> at(long address) {
        return Optional.ofNullable(mapped.floorEntry(address)).map(entry -> entry.getValue());
    }

    /**
     * Maps the peer's regions as they are now.
     *
     * @return mappings of regions that are gone; to be closed when nothing touches them
     */
    synchronized List<Mapped> update(Metadata.Update update) {
        if (closed || !sameSystem || update.revision() <= revision) {
            return List.of();
        }
        revision = update.revision();
        Set<Metadata.Exposed> now = new HashSet<>(update.regions());
        List<Mapped> gone = new ArrayList<>();
        mapped.values().removeIf(each -> {
            boolean remove = !now.contains(each.region);
            if (remove) {
                gone.add(each);
            }
            return remove;
        });
        refused.retainAll(now);
        for (Metadata.Exposed region : now) {
            if (region.mappable() && !refused.contains(region) && !mapped.containsKey(region.address())) {
                map(region);
            }
        }
        return gone;
    }

    @GuardedBy("this")
    private void map(Metadata.Exposed region) {
        Arena arena = Arena.ofShared();
        try {
            MemorySegment memory = region.isOfDevice()
                    ? MemorySegment.ofAddress(region.address()).reinterpret(region.bytes())
                    : MappableMemory.map(arena, peer.fileOf(region), region.inode(), region.bytes());
            mapped.put(region.address(), new Mapped(region, memory, arena, mappedBytes));
        } catch (IOException e) {
            arena.close();
            refused.add(region);
            LOG.warn(
                    "memory of transfer agent {} on this host cannot be mapped and goes over TCP: {}. Both processes need the "
                            + "same user and process namespace.",
                    peer.name(),
                    e.getMessage());
        }
    }

    /** Gives up all mappings, which are to be closed when nothing touches them; nothing is mapped any more. */
    synchronized List<Mapped> giveUp() {
        closed = true;
        List<Mapped> all = List.copyOf(mapped.values());
        mapped.clear();
        return all;
    }
}
