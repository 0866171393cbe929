package baton.transfer.embedded;

import baton.kv.DevicePeers;
import baton.kv.KvMemory;
import baton.transfer.Region;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Registration;
import baton.transfer.TransferAgent.Span;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Predicate;

/**
 * Registered memory of this process, the grants to write to it, and the transfers under way with it.
 *
 * <p>A transfer's memory is found and the transfer is added in one block that is synchronized on the registry, so that a registration
 * or a grant that is closed ends every transfer that uses it.
 */
final class MemoryRegistry {
    private final Runnable regionsChanged;
    private final SecureRandom random = new SecureRandom();

    @GuardedBy("this")
    private final NavigableMap<Long, Registered> regions = new TreeMap<>();

    @GuardedBy("this")
    private final Map<Long, WriteGrant> grants = new HashMap<>();

    @GuardedBy("this")
    private final Set<InFlightTransfer> transfers = new HashSet<>();

    @GuardedBy("this")
    private long revision;

    /** @param regionsChanged called, without the registry's monitor, when a registration was closed */
    MemoryRegistry(Runnable regionsChanged) {
        this.regionsChanged = regionsChanged;
    }

    /** Registered memory. */
    final class Registered implements Registration {
        private final MemorySegment memory;
        private final Metadata.Exposed exposed;
        private final boolean needsGrant;
        private final Optional<DevicePeers> peers;

        private Registered(Region region, MemorySegment memory, Metadata.Exposed exposed) {
            this.memory = memory;
            this.exposed = exposed;
            this.needsGrant = region.needsPermit();
            this.peers = region.where() instanceof KvMemory.Device device
                    ? device.copier().peers()
                    : Optional.empty();
        }

        /** Opens pools of peers, if the region is a pool of a device. */
        Optional<DevicePeers> peers() {
            return peers;
        }

        /** Offset of some memory in it, if it is there. */
        OptionalLong offset(MemorySegment part) {
            return exposed.offset(part);
        }

        @Override
        public void close() {
            if (remove(this)) {
                endAll(transfer -> transfer.touches(this), Cause.REFUSED, "the memory's registration was closed");
                regionsChanged.run();
            }
        }
    }

    /** @param exposed the region's description for peers */
    synchronized Registered register(Region region, Metadata.Exposed exposed) throws TransferException {
        MemorySegment memory = memory(region);
        if (regions.size() == Metadata.MOST_REGIONS) {
            throw new TransferException("%d regions are registered, no more are allowed".formatted(regions.size()));
        }
        Map.Entry<Long, Registered> before = regions.floorEntry(memory.address() + memory.byteSize() - 1);
        if (before != null && before.getKey() + before.getValue().memory.byteSize() > memory.address()) {
            throw new TransferException("memory at %d of %d bytes is registered already, in part at least"
                    .formatted(memory.address(), memory.byteSize()));
        }
        Registered registered = new Registered(region, memory, exposed);
        regions.put(memory.address(), registered);
        revision++;
        return registered;
    }

    /** The memory, of a device's only with its address and size: nothing but the device reads or writes it. */
    private static MemorySegment memory(Region region) {
        return switch (region.where()) {
            case KvMemory.Host host -> host.host();
            case KvMemory.Device device ->
                MemorySegment.ofAddress(device.address()).reinterpret(device.bytes());
        };
    }

    private synchronized boolean remove(Registered registered) {
        if (!regions.remove(registered.memory.address(), registered)) {
            return false;
        }
        revision++;
        return true;
    }

    /** The regions' descriptions for peers. */
    synchronized Metadata.Update exposed() {
        List<Metadata.Exposed> all = new ArrayList<>();
        for (Registered each : regions.values()) {
            all.add(each.exposed);
        }
        return new Metadata.Update(revision, all);
    }

    synchronized WriteGrant grant(List<Span> memory) {
        long token;
        do {
            token = random.nextLong();
        } while (token == 0 || grants.containsKey(token));
        WriteGrant grant = new WriteGrant(this, token, memory);
        grants.put(token, grant);
        return grant;
    }

    /** A grant that is not closed. */
    @GuardedBy("this")
    Optional<WriteGrant> grant(long token) {
        return Optional.ofNullable(grants.get(token));
    }

    synchronized void remove(WriteGrant grant) {
        grants.remove(grant.token());
    }

    /**
     * Bytes of a region, if all of them are in one.
     *
     * @param touched gets the region
     */
    @GuardedBy("this")
    Optional<MemorySegment> find(long address, long bytes, Set<Object> touched) {
        Map.Entry<Long, Registered> entry = regions.floorEntry(address);
        if (entry == null || !entry.getValue().exposed.holds(address, bytes)) {
            return Optional.empty();
        }
        touched.add(entry.getValue());
        return Optional.of(entry.getValue().memory.asSlice(address - entry.getKey(), bytes));
    }

    /** Whether peers write to memory of a region with a grant only. */
    @GuardedBy("this")
    boolean needsGrant(MemorySegment memory) {
        Map.Entry<Long, Registered> entry = regions.floorEntry(memory.address());
        return entry != null && entry.getValue().needsGrant;
    }

    /** Whether peers can map all that a transfer touches. */
    static boolean mappable(Set<Object> touched) {
        return touched.stream().allMatch(each -> each instanceof Registered region && region.exposed.mappable());
    }

    /** Adds a transfer, in the synchronized block that has found its memory. */
    @GuardedBy("this")
    void add(InFlightTransfer transfer) {
        transfers.add(transfer);
    }

    synchronized void remove(InFlightTransfer transfer) {
        transfers.remove(transfer);
    }

    /** Ends the transfers that are late. */
    void endLate() {
        List<InFlightTransfer> all;
        synchronized (this) {
            all = List.copyOf(transfers);
        }
        all.forEach(InFlightTransfer::endIfLate);
    }

    /** Ends some of the transfers, and returns when they touch no memory any more. */
    void endAll(Predicate<InFlightTransfer> which, Cause cause, String message) {
        List<InFlightTransfer> ending = new ArrayList<>();
        synchronized (this) {
            for (InFlightTransfer transfer : transfers) {
                if (which.test(transfer)) {
                    ending.add(transfer);
                }
            }
        }
        ending.forEach(each -> each.fail(cause, message));
        ending.forEach(InFlightTransfer::awaitEmpty);
    }
}
