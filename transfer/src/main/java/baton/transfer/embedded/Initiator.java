package baton.transfer.embedded;

import baton.memory.ParallelCopier.Copy;
import baton.transfer.Range;
import baton.transfer.RefusedTransfer;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** The side that opened the connection: starts transfers and takes their results. */
final class Initiator implements ConnectionSide {
    private final Connection connection;
    private final EmbeddedAgent agent;
    /** False once the peer could not map memory of this process's host. */
    private volatile boolean writesMapped = true;

    Initiator(Connection connection) {
        this.connection = connection;
        this.agent = connection.agent();
    }

    Transfer start(OutboundTransfer.Request request) {
        List<Range> ranges = request.ranges();
        List<Copy> copies = new ArrayList<>();
        OutboundTransfer transfer;
        boolean mapped;
        DeviceCopies.Where where;
        MemoryRegistry registry = agent.registry();
        synchronized (registry) {
            Set<Object> touched = new HashSet<>();
            List<MemorySegment> local = new ArrayList<>(ranges.size());
            for (Range range : ranges) {
                Optional<MemorySegment> found = registry.find(range.local(), range.bytes(), touched);
                if (found.isEmpty()) {
                    return new RefusedTransfer(
                            Cause.REFUSED, "%s: local is not registered memory of this process".formatted(range));
                }
                local.add(found.get());
            }
            boolean ofHost = DeviceCopies.where(touched) == DeviceCopies.Where.HOST;
            mapped = switch (request.operation()) {
                case READ -> find(ranges, local, touched, copies);
                case WRITE ->
                    (writesMapped || !ofHost)
                            && agent.sharesMemoryWith(connection.peer())
                            && MemoryRegistry.mappable(touched);
            };
            where = DeviceCopies.where(touched);
            boolean receives = !mapped && request.operation() == Operation.READ;
            transfer = new OutboundTransfer(connection, request, new LocalRanges(local, touched), receives);
            registry.add(transfer);
        }
        transfer.begin();
        if (ranges.isEmpty()) {
            transfer.succeed();
        } else if (!where.isReachable(mapped)) {
            transfer.fail(Cause.REFUSED, DeviceCopies.OUT_OF_REACH);
        } else if (mapped && request.operation() == Operation.READ && where == DeviceCopies.Where.DEVICE) {
            agent.deviceCopies().start(transfer, copies);
        } else if (mapped && request.operation() == Operation.READ) {
            agent.copier().start(transfer, transfer, copies, request.digests());
        } else {
            transfer.request(mapped);
        }
        return transfer;
    }

    /** Finds all ranges in the peer's mapped memory; returns false if one is not there. */
    private boolean find(List<Range> ranges, List<MemorySegment> local, Set<Object> touched, List<Copy> copies) {
        Set<PeerMemory.Mapped> used = new HashSet<>();
        for (int i = 0; i < ranges.size(); i++) {
            Range range = ranges.get(i);
            Optional<PeerMemory.Mapped> region = connection.peerMemory().at(range.remote());
            Optional<MemorySegment> remote = region.flatMap(each -> each.slice(range.remote(), range.bytes()));
            if (remote.isEmpty()) {
                return false;
            }
            used.add(region.orElseThrow());
            copies.add(new Copy(remote.get(), local.get(i)));
        }
        touched.addAll(used);
        return true;
    }

    @Override
    public void handle(Frame frame) throws TransferException {
        if (!(frame instanceof Frame.Result(long id, Optional<Frame.Failure> failure))) {
            throw ConnectionSide.unexpected(frame);
        }
        if (!(connection.transfer(id).orElse(null) instanceof OutboundTransfer transfer)) {
            return;
        }
        if (failure.isEmpty()) {
            long left = transfer.cursor().left();
            if (transfer.receives() && left > 0) {
                throw new TransferException("it ends a transfer that lacks %d bytes".formatted(left));
            }
            transfer.succeed();
        } else if (failure.get().cause().isPresent()) {
            transfer.fail(
                    failure.get().cause().get(),
                    connection.peerName() + ": " + failure.get().message());
        } else if (transfer.isMappedWrite()) {
            if (transfer.where() == DeviceCopies.Where.HOST) {
                writesMapped = false;
                transfer.request(false);
            } else {
                transfer.fail(Cause.REFUSED, DeviceCopies.OUT_OF_REACH);
            }
        } else {
            throw new TransferException("it reports a failure to map memory, but was not asked to map any");
        }
    }
}
