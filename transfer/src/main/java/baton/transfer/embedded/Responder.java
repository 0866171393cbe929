package baton.transfer.embedded;

import baton.memory.ParallelCopier.Copy;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferException;
import baton.transfer.embedded.InboundTransfer.Movement;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** The side that accepted the connection: serves the peer's requests, and takes its notifications. */
final class Responder implements ConnectionSide {
    private final Connection connection;
    private final EmbeddedAgent agent;

    Responder(Connection connection) {
        this.connection = connection;
        this.agent = connection.agent();
    }

    @Override
    public void handle(Frame frame) throws TransferException {
        switch (frame) {
            case Frame.Notify(byte[] message) -> {
                if (!agent.inbox().add(new Notification(connection.peerName(), message))) {
                    throw new TransferException("it sends more notifications than are taken here");
                }
                agent.tellProgress();
            }
            case Frame.Read read -> serve(read);
            case Frame.Write write -> serve(write);
            case Frame.Cancel(long id) -> cancel(id);
            default -> throw ConnectionSide.unexpected(frame);
        }
    }

    private void cancel(long id) {
        connection.transfer(id).ifPresent(transfer -> {
            transfer.fail(Cause.CANCELLED, "cancelled by " + connection.peerName());
            if (transfer instanceof InboundTransfer inbound && inbound.movement() == Movement.COPY) {
                // A thread may be within a piece; until it is out, the peer's next frame may not be handled, as the
                // peer takes the
                // memory for unused.
                inbound.awaitEmpty();
            }
        });
    }

    private void serve(Frame.Read read) throws TransferException {
        requireNewId(read.id());
        InboundTransfer transfer;
        MemoryRegistry registry = agent.registry();
        synchronized (registry) {
            List<MemorySegment> local = new ArrayList<>();
            Set<Object> touched = new HashSet<>();
            for (int i = 0; i < read.ranges().length; i += 2) {
                long address = read.ranges()[i];
                long bytes = read.ranges()[i + 1];
                Optional<MemorySegment> found = registry.find(address, bytes, touched);
                if (found.isEmpty()) {
                    refuseUnregistered(read.id(), address, bytes);
                    return;
                }
                local.add(found.get());
            }
            if (!DeviceCopies.where(touched).isReachable(false)) {
                refuse(read.id(), Cause.REFUSED, DeviceCopies.OUT_OF_REACH);
                return;
            }
            LocalRanges ranges = new LocalRanges(local, touched);
            transfer = new InboundTransfer(connection, read.id(), ranges, Movement.SEND, read.timeoutMillis());
            registry.add(transfer);
        }
        transfer.begin();
        if (transfer.ranges() == 0) {
            transfer.succeed();
        } else {
            connection.stream(transfer);
        }
    }

    private void serve(Frame.Write write) throws TransferException {
        requireNewId(write.id());
        List<Copy> copies = new ArrayList<>();
        InboundTransfer transfer;
        MemoryRegistry registry = agent.registry();
        synchronized (registry) {
            List<MemorySegment> local = new ArrayList<>();
            Set<Object> touched = new HashSet<>();
            Optional<WriteGrant> grant = registry.grant(write.grant());
            if (write.grant() != 0 && grant.isEmpty()) {
                refuse(
                        write.id(),
                        Cause.NOT_PERMITTED,
                        "permit %016x is closed, or is none of this agent".formatted(write.grant()));
                return;
            }
            touched.addAll(grant.stream().toList());
            long[] ranges = write.ranges();
            for (int i = 0; i < ranges.length; i += 3) {
                long remote = ranges[i];
                long address = ranges[i + 1];
                long bytes = ranges[i + 2];
                Optional<MemorySegment> found = registry.find(address, bytes, touched);
                if (found.isEmpty()) {
                    refuseUnregistered(write.id(), address, bytes);
                    return;
                }
                boolean granted =
                        grant.isPresent() ? grant.get().holds(found.get()) : !registry.needsGrant(found.get());
                if (!granted) {
                    refuse(
                            write.id(),
                            Cause.NOT_PERMITTED,
                            "%d bytes at %d need a permit, %s"
                                    .formatted(
                                            bytes,
                                            address,
                                            grant.isPresent()
                                                    ? "that of the write is for other memory"
                                                    : "the write has none"));
                    return;
                }
                local.add(found.get());
                if (write.mapped()) {
                    Optional<PeerMemory.Mapped> region = connection.peerMemory().at(remote);
                    Optional<MemorySegment> source = region.flatMap(each -> each.slice(remote, bytes));
                    if (source.isEmpty()) {
                        connection.send(new Frame.Result(
                                write.id(), Optional.of(new Frame.Failure(Optional.empty(), "not mapped"))));
                        return;
                    }
                    touched.add(region.orElseThrow());
                    copies.add(new Copy(source.get(), found.get()));
                }
            }
            if (!DeviceCopies.where(touched).isReachable(write.mapped())) {
                refuse(write.id(), Cause.REFUSED, DeviceCopies.OUT_OF_REACH);
                return;
            }
            Movement movement = write.mapped() ? Movement.COPY : Movement.RECEIVE;
            LocalRanges all = new LocalRanges(local, touched);
            transfer = new InboundTransfer(connection, write.id(), all, movement, write.timeoutMillis());
            registry.add(transfer);
            grant.ifPresent(WriteGrant::countWrite);
        }
        transfer.begin();
        if (transfer.ranges() == 0) {
            transfer.succeed();
        } else if (transfer.where() == DeviceCopies.Where.DEVICE) {
            agent.deviceCopies().start(transfer, copies);
        } else if (transfer.movement() == Movement.COPY) {
            agent.copier().start(transfer, transfer, copies);
        }
    }

    private void requireNewId(long id) throws TransferException {
        if (connection.transfer(id).isPresent()) {
            throw new TransferException("it asks twice with id=" + id);
        }
    }

    private void refuseUnregistered(long id, long address, long bytes) {
        refuse(id, Cause.REFUSED, "%d bytes at %d are not registered memory".formatted(bytes, address));
    }

    private void refuse(long id, Cause cause, String why) {
        connection.send(new Frame.Result(id, Optional.of(new Frame.Failure(Optional.of(cause), why))));
    }
}
