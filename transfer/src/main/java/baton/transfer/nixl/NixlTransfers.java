package baton.transfer.nixl;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlApi.Status;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * The transfers of a {@link NixlAgent} that are not over: it checks them, posts them piece by piece, and ends them. Belongs to the owner
 * thread.
 */
final class NixlTransfers {
    private static final int FLIGHTS = 4;

    private final NixlApi api;
    private final Ticker ticker;
    private final NixlThread thread;
    private final NixlNativeAgent nixl;
    private final NixlPeers peers;
    private final Runnable progress;
    private final Consumer<String> restart;

    private final List<NixlTransfer> active = new ArrayList<>();

    /**
     * @param progress called when a transfer is over
     * @param restart makes the native agent anew, for a reason, where a transfer cannot be ended otherwise
     */
    NixlTransfers(
            NixlApi api,
            Ticker ticker,
            NixlThread thread,
            NixlNativeAgent nixl,
            NixlPeers peers,
            Runnable progress,
            Consumer<String> restart) {
        this.api = api;
        this.ticker = ticker;
        this.thread = thread;
        this.nixl = nixl;
        this.peers = peers;
        this.progress = progress;
        this.restart = restart;
    }

    /** Called by any thread, as {@link NixlAgent#start}. */
    Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        NixlTransfer transfer = new NixlTransfer(
                operation, peer, ranges, notification, Deadline.after(ticker, timeout), ticker, thread);
        thread.submit(() -> begin(transfer));
        if (thread.hasEnded()) {
            transfer.end(new Transfer.State.Failed(Transfer.Cause.REFUSED, thread.whyEnded()));
        }
        return transfer;
    }

    boolean isEmpty() {
        return active.isEmpty();
    }

    /** Whether NIXL has requests with a peer under way. */
    boolean isUnderWay(NixlPeer peer) {
        return active.stream().anyMatch(transfer -> transfer.peer == peer && !transfer.flights.isEmpty());
    }

    /** Whether NIXL has requests of transfers from or into registered memory under way. */
    boolean isUnderWay(NixlRegistration memory) {
        return active.stream().anyMatch(transfer -> !transfer.flights.isEmpty() && memory.isUsedBy(transfer));
    }

    /**
     * Takes all as far as they get without waiting.
     *
     * @return whether any got further
     */
    boolean step() {
        thread.check();
        boolean worked = false;
        for (NixlTransfer transfer : List.copyOf(active)) {
            // Advancing one transfer may end another.
            worked |= active.contains(transfer) && advance(transfer);
        }
        return worked;
    }

    /** Lets all be over as soon as nothing of them is under way. */
    void endAll(String why) {
        thread.check();
        active.forEach(transfer -> transfer.end(why));
    }

    /** Lets those from or into registered memory be over as soon as nothing of them is under way. */
    void endThoseOf(NixlRegistration memory) {
        thread.check();
        for (NixlTransfer transfer : active) {
            if (transfer.ending.isEmpty() && memory.isUsedBy(transfer)) {
                transfer.ending =
                        Optional.of(new Transfer.State.Failed(Transfer.Cause.REFUSED, "its memory was unregistered"));
            }
        }
    }

    /** Releases the requests under way, as the native agent is about to be destroyed. */
    void releaseAll() {
        thread.check();
        for (NixlTransfer transfer : active) {
            transfer.flights.forEach(flight -> api.release(nixl.handle(), flight.request()));
            transfer.flights.clear();
        }
    }

    /** All are over because the native agent was destroyed, those that were about to end as they would have. */
    void finishAll(Transfer.State.Failed otherwise) {
        for (NixlTransfer transfer : List.copyOf(active)) {
            finish(transfer, transfer.ending.orElse(otherwise));
        }
    }

    /** All are over because the agent is. */
    void cancelAll(String why) {
        for (NixlTransfer transfer : List.copyOf(active)) {
            finish(transfer, new Transfer.State.Failed(Transfer.Cause.CANCELLED, why));
        }
    }

    private void begin(NixlTransfer transfer) {
        thread.check();
        active.add(transfer);
        if (thread.hasEnded()) {
            finish(transfer, new Transfer.State.Failed(Transfer.Cause.REFUSED, thread.whyEnded()));
        } else if (!(transfer.peer instanceof NixlPeer peer) || !peer.isOf(peers)) {
            finish(
                    transfer,
                    new Transfer.State.Failed(
                            Transfer.Cause.REFUSED, "peer " + transfer.peer.name() + " is another agent's"));
        } else {
            try {
                cut(peer, transfer);
                if (transfer.operation == Operation.WRITE
                        && peer.metadata.identity().isPresent()) {
                    transfer.checksNeeded = peer.checks + (peer.probe.isPresent() ? 2 : 1);
                }
                boolean _ = advance(transfer);
            } catch (TransferException e) {
                finish(transfer, new Transfer.State.Failed(Transfer.Cause.REFUSED, String.valueOf(e.getMessage())));
            }
        }
    }

    /** Checks a transfer's ranges and makes the pieces that NIXL gets: neighbours together, none longer than a flight. */
    private void cut(NixlPeer peer, NixlTransfer transfer) throws TransferException {
        List<NixlMemory> remote = peer.metadata.memory().stream()
                .filter(memory -> peer.metadata
                        .identity()
                        .filter(word -> memory.contains(word.address(), Long.BYTES))
                        .isEmpty())
                .toList();
        Optional<NixlRegistration> lastHeld = Optional.empty();
        Optional<NixlMemory> lastMemory = Optional.empty();
        long local = 0;
        long far = 0;
        long bytes = 0;
        for (Range range : transfer.ranges) {
            Optional<NixlRegistration> held = lastHeld.filter(
                            same -> same.memory().contains(range.local(), range.bytes()))
                    .or(() -> nixl.find(range.local(), range.bytes()));
            Optional<NixlMemory> memory = lastMemory
                    .filter(same -> same.contains(range.remote(), range.bytes()))
                    .or(() -> remote.stream()
                            .filter(one -> one.contains(range.remote(), range.bytes()))
                            .findFirst());
            if (held.isEmpty()) {
                throw new TransferException(range + ": its local part is not in memory that is registered here");
            }
            if (memory.isEmpty()) {
                throw new TransferException(
                        range + ": its remote part is not in memory that " + peer.name() + " has registered");
            }
            transfer.between(new NixlTransfer.Kinds(
                    held.get().memory().kind(), memory.get().kind()));
            boolean neighbour = bytes > 0
                    && local + bytes == range.local()
                    && far + bytes == range.remote()
                    && held.equals(lastHeld)
                    && memory.equals(lastMemory);
            if (neighbour) {
                bytes += range.bytes();
            } else {
                transfer.add(local, far, bytes);
                local = range.local();
                far = range.remote();
                bytes = range.bytes();
            }
            lastHeld = held;
            lastMemory = memory;
        }
        transfer.add(local, far, bytes);
    }

    /** Takes a transfer as far as it gets without waiting. */
    private boolean advance(NixlTransfer transfer) {
        thread.check();
        NixlPeer peer = (NixlPeer) transfer.peer;
        boolean worked = false;
        for (NixlTransfer.Flight flight : List.copyOf(transfer.flights)) {
            Status status = api.status(nixl.handle(), flight.request());
            if (status != Status.IN_PROGRESS) {
                worked = true;
                transfer.flights.remove(flight);
                land(transfer, peer, flight.request(), flight.bytes(), status);
            }
        }
        boolean checked = peer.checks >= transfer.checksNeeded;
        if (!checked && peer.alive()) {
            peers.probeNow(peer);
            checked = peer.checks >= transfer.checksNeeded;
        }
        if (transfer.ending.isEmpty()) {
            if (transfer.cancelled) {
                transfer.ending = Optional.of(new Transfer.State.Failed(Transfer.Cause.CANCELLED, "cancelled"));
            } else if (!peer.alive()) {
                transfer.ending = Optional.of(new Transfer.State.Failed(Transfer.Cause.PEER_GONE, peer.why()));
            } else if (checked && transfer.checksNeeded > 0 && peer.outdated) {
                transfer.ending = Optional.of(new Transfer.State.Failed(
                        Transfer.Cause.REFUSED,
                        peer.name()
                                + " has unregistered memory since it was connected; connect with its metadata of now"));
            } else if (transfer.deadline.isOver()) {
                transfer.ending = Optional.of(new Transfer.State.Failed(
                        Transfer.Cause.TIMEOUT,
                        "%d of %d bytes were moved within %s"
                                .formatted(transfer.moved, transfer.bytes, transfer.deadline)));
            }
        }
        int posted = 0;
        while (checked
                && transfer.ending.isEmpty()
                && transfer.hasMore()
                && transfer.flights.size() < FLIGHTS
                && posted < FLIGHTS) {
            post(transfer, peer);
            posted++;
        }
        worked |= posted > 0;
        if (transfer.flights.isEmpty()) {
            if (transfer.ending.isPresent()) {
                finish(transfer, transfer.ending.get());
            } else if (checked && !transfer.hasMore()) {
                complete(transfer, peer);
            }
        } else if (!thread.hasEnded() && transfer.grace.isOver()) {
            restart.accept("a transfer with %s is under way %d ms after its time was up"
                    .formatted(peer.name(), NixlAgent.GRACE_MILLIS));
        }
        return worked;
    }

    private void post(NixlTransfer transfer, NixlPeer peer) {
        List<Range> pieces = transfer.take();
        long bytes = pieces.stream().mapToLong(Range::bytes).sum();
        try {
            MemorySegment request = api.createRequest(
                    nixl.handle(),
                    transfer.operation,
                    pieces,
                    transfer.kinds.orElse(NixlTransfer.Kinds.DRAM),
                    peer.metadata.agent());
            Status status = api.post(nixl.handle(), request);
            if (status == Status.IN_PROGRESS) {
                transfer.flights.add(new NixlTransfer.Flight(request, bytes));
            } else {
                land(transfer, peer, request, bytes, status);
            }
        } catch (TransferException e) {
            fail(transfer, peer, Transfer.Cause.REFUSED, String.valueOf(e.getMessage()));
        }
    }

    private void land(NixlTransfer transfer, NixlPeer peer, MemorySegment request, long bytes, Status status) {
        if (status.failed()) {
            api.release(nixl.handle(), request);
            fail(transfer, peer, Transfer.Cause.TRANSPORT, "NIXL reports " + status);
        } else {
            api.release(nixl.handle(), request);
            transfer.moved += bytes;
        }
    }

    /** A failure is the peer's death if the peer cannot be probed any more. */
    private void fail(NixlTransfer transfer, NixlPeer peer, Transfer.Cause cause, String message) {
        if (peer.alive()) {
            peers.probeNow(peer);
        }
        if (transfer.ending.isEmpty()) {
            transfer.ending = Optional.of(
                    peer.alive()
                            ? new Transfer.State.Failed(cause, message)
                            : new Transfer.State.Failed(Transfer.Cause.PEER_GONE, peer.why() + "; " + message));
        }
    }

    private void complete(NixlTransfer transfer, NixlPeer peer) {
        Status sent = transfer.notification
                .map(message -> api.notify(nixl.handle(), peer.metadata.agent(), message))
                .orElse(Status.SUCCESS);
        if (sent.failed()) {
            fail(transfer, peer, Transfer.Cause.TRANSPORT, "its notification could not be sent: " + sent);
            finish(transfer, transfer.ending.orElseThrow());
        } else {
            finish(
                    transfer,
                    new Transfer.State.Done(transfer.bytes, Duration.ofNanos(ticker.nanos() - transfer.started)));
        }
    }

    private void finish(NixlTransfer transfer, Transfer.State state) {
        thread.check();
        active.remove(transfer);
        transfer.end(state);
        progress.run();
    }
}
