package baton.transfer.nixl;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** A transfer of a {@link NixlAgent}. State that is not volatile belongs to the agent's owner thread. */
final class NixlTransfer implements Transfer {
    private static final int FLIGHT_RANGES = 1024;

    /** A request that NIXL has under way. */
    record Flight(MemorySegment request, long bytes) {}

    /** The kinds of memory here and at the peer that a request moves bytes between. */
    record Kinds(NixlMemory.Kind local, NixlMemory.Kind remote) {
        static final Kinds DRAM = new Kinds(NixlMemory.Kind.DRAM, NixlMemory.Kind.DRAM);

        @Override
        public String toString() {
            return local + " here to " + remote + " at the peer";
        }
    }

    final TransferAgent.Operation operation;
    final TransferAgent.Peer peer;
    final List<Range> ranges;
    final Optional<byte[]> notification;
    final long started;
    private final NixlThread thread;
    final Deadline deadline;
    /** When the native agent is destroyed if pieces are under way still. */
    final Deadline grace;

    final long bytes;
    final List<Flight> flights = new ArrayList<>();
    private final Deque<Range> pieces = new ArrayDeque<>();
    Optional<Kinds> kinds = Optional.empty();
    private volatile State state = new State.UnderWay();
    volatile boolean cancelled;
    /** How it ends once no flight is under way. */
    Optional<State.Failed> ending = Optional.empty();

    long moved;
    /** {@link NixlPeer#checks} that a write waits for. */
    long checksNeeded;

    /** @param thread of the agent */
    NixlTransfer(
            TransferAgent.Operation operation,
            TransferAgent.Peer peer,
            List<Range> ranges,
            Optional<byte[]> notification,
            Deadline deadline,
            Ticker ticker,
            NixlThread thread) {
        this.operation = operation;
        this.peer = peer;
        this.ranges = List.copyOf(ranges);
        this.notification = notification.map(byte[]::clone);
        this.deadline = deadline;
        this.thread = thread;
        started = ticker.nanos();
        grace = Deadline.after(ticker, deadline.timeout().plusMillis(NixlAgent.GRACE_MILLIS));
        bytes = ranges.stream().mapToLong(Range::bytes).sum();
    }

    @Override
    public State state() {
        return state;
    }

    @Override
    public void cancel() {
        cancelled = true;
        thread.wake();
    }

    /** Lets it be over as soon as nothing of it is under way. */
    void end(String why) {
        if (ending.isEmpty()) {
            ending = Optional.of(new State.Failed(Cause.CANCELLED, why));
        }
    }

    void end(State last) {
        if (state instanceof State.UnderWay) {
            state = last;
        }
    }

    /**
     * A range of the transfer is in memory of these kinds.
     *
     * @throws TransferException if another range is in memory of other kinds: a request of NIXL has one kind on each side
     */
    void between(Kinds these) throws TransferException {
        if (kinds.filter(others -> !others.equals(these)).isPresent()) {
            throw new TransferException("ranges of a transfer are from %s and from %s".formatted(kinds.get(), these));
        }
        kinds = Optional.of(these);
    }

    /** Adds a range, cut into pieces that NIXL gets. */
    void add(long local, long far, long length) {
        for (long offset = 0; offset < length; offset += NixlAgent.FLIGHT_BYTES) {
            pieces.add(new Range(local + offset, far + offset, Math.min(NixlAgent.FLIGHT_BYTES, length - offset)));
        }
    }

    boolean hasMore() {
        return !pieces.isEmpty();
    }

    /** The pieces of the next request. */
    List<Range> take() {
        List<Range> taken = new ArrayList<>();
        long total = 0;
        for (@Nullable Range piece = pieces.peek();
                piece != null && taken.size() < FLIGHT_RANGES && total + piece.bytes() <= NixlAgent.FLIGHT_BYTES;
                piece = pieces.peek()) {
            taken.add(pieces.remove());
            total += piece.bytes();
        }
        return taken;
    }
}
