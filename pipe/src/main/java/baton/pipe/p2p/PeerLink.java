package baton.pipe.p2p;

import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.messages.Closing;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.GetReply;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The outgoing connections to a peer: one for control messages, and one for bytes that is made with the first tensor. Both end
 * together, and the next use makes them again; so a peer that restarts at the same address is connected to anew.
 *
 * <p>One exchange at a time: message, answer and bytes.
 */
final class PeerLink implements AutoCloseable {
    private final PeerAddress self;
    private final PeerAddress peer;
    private final P2pSettings settings;
    private final P2pStats stats;
    private final PeerChannel channel;
    private final WireTransport transport;
    private final Ticker ticker;
    private final Runnable whenEnded;
    private final ReentrantLock turn = new ReentrantLock(true);

    /** Written by the holder of the turn. */
    private volatile Optional<Connection> current = Optional.empty();

    private volatile long lastUse;
    private volatile boolean closed;

    /** @param whenEnded runs when a connection has ended */
    PeerLink(EndpointContext endpoint, PeerAddress peer, Runnable whenEnded) {
        this.self = endpoint.self();
        this.peer = peer;
        this.settings = endpoint.settings();
        this.stats = endpoint.stats();
        this.channel = endpoint.channel();
        this.transport = endpoint.transport();
        this.ticker = endpoint.ticker();
        this.lastUse = ticker.nanos();
        this.whenEnded = whenEnded;
    }

    /** Both connections, from the start of connecting to the end of either. */
    private final class Connection {
        @GuardedBy("this")
        private Optional<PeerChannel.Call> call = Optional.empty();

        @GuardedBy("this")
        private Optional<AutoCloseable> data = Optional.empty();

        private Optional<Wire> wire = Optional.empty();

        @GuardedBy("this")
        private boolean over;

        private void open(Deadline deadline) throws P2pException {
            try {
                PeerChannel.Call opened = channel.call(
                        peer.host(), peer.port(), self.toString(), deadline.remaining(settings.exchange()), this::end);
                if (!keep(opened, true)) {
                    throw new P2pException(Fault.PEER_GONE, peer + " has gone");
                }
            } catch (MessageException e) {
                end();
                throw new P2pException(Fault.PEER_GONE, peer + " is not there: " + e.getMessage(), e);
            } catch (RuntimeException | Error e) {
                end();
                throw e;
            }
        }

        /** Makes {@link #end} close a part; closes it and returns false if the connection is over already. */
        private boolean keep(AutoCloseable part, boolean control) {
            boolean late;
            synchronized (this) {
                late = over;
                if (part instanceof PeerChannel.Call opened && control) {
                    call = Optional.of(opened);
                } else {
                    data = Optional.of(part);
                }
            }
            if (late) {
                Closing.quietly(part);
            }
            return !late;
        }

        /** The connection for bytes; the first call makes it. */
        private Wire wire(Deadline deadline) throws P2pException {
            if (wire.isPresent()) {
                return wire.get();
            }
            try (WireTransport.Offer offer = transport.offer(settings.host())) {
                keep(offer, false);
                call().tell(List.of(new P2pMessage.New(offer.id()).encode()), deadline.remaining(settings.exchange()));
                Wire made = offer.accept(deadline.remaining(settings.exchange()));
                if (!keep(made, false)) {
                    throw new P2pException(Fault.PEER_GONE, peer + " has gone");
                }
                wire = Optional.of(made);
                return made;
            } catch (MessageException | PipeException e) {
                end();
                throw new P2pException(
                        Fault.PEER_GONE, "no connection for bytes with " + peer + ": " + e.getMessage(), e);
            }
        }

        private synchronized PeerChannel.Call call() {
            return call.orElseThrow();
        }

        private synchronized boolean isOpen() {
            return call.isPresent() && !over;
        }

        private synchronized boolean isOver() {
            return over;
        }

        private void end() {
            Optional<PeerChannel.Call> control;
            Optional<AutoCloseable> bytes;
            synchronized (this) {
                if (over) {
                    return;
                }
                over = true;
                control = call;
                bytes = data;
            }
            control.ifPresent(Closing::quietly);
            bytes.ifPresent(Closing::quietly);
            whenEnded.run();
        }
    }

    /** Sends a tensor to the peer. Each step has a deadline of its own. */
    void put(String tensorId, TensorHead head, TensorBytes data) throws P2pException {
        Deadline deadline = Deadline.never(ticker);
        TensorHead checked = head.withChecksum(TensorChecksum.of(tensorId, head, data));
        Boolean unusedDone = exchange(deadline, connection -> {
            Wire wire = connection.wire(deadline);
            byte[] answer = ask(connection, new P2pMessage.Put(tensorId, checked), deadline);
            switch (PutReply.decode(answer)) {
                case TAKEN -> wire.send(data, settings.transfer());
                case OUT_OF_MEMORY ->
                    throw new P2pException(
                            Fault.OUT_OF_MEMORY, peer + " has no memory for " + tensorId + ", or does not want it");
            }
            stats.add(Count.SENT_TENSORS, 1);
            stats.add(Count.SENT_BYTES, data.byteSize());
            return true;
        });
    }

    /** Memory for a tensor that the peer sends. */
    interface Room {
        TensorBytes of(TensorHead head) throws P2pException;
    }

    /** Requests a tensor from the peer; empty if the peer does not have it. */
    Optional<TensorHead> get(String tensorId, Room room, Deadline deadline) throws P2pException {
        return exchange(deadline, connection -> {
            Wire wire = connection.wire(deadline);
            return switch (GetReply.decode(ask(connection, new P2pMessage.Get(tensorId), deadline))) {
                case GetReply.Missing _ -> Optional.empty();
                case GetReply.Here(TensorHead head) -> {
                    TensorBytes bytes = placeFor(head, room, connection);
                    wire.receive(bytes, deadline.remaining(settings.transfer()));
                    TensorChecksum.check(tensorId, head, bytes, stats);
                    yield Optional.of(head);
                }
            };
        });
    }

    /** The peer sends the bytes in any case: without memory for them the connection has to end. */
    private static TensorBytes placeFor(TensorHead head, Room room, Connection connection) throws P2pException {
        try {
            return room.of(head);
        } catch (P2pException e) {
            connection.end();
            throw e;
        }
    }

    private byte[] ask(Connection connection, P2pMessage message, Deadline deadline) throws MessageException {
        List<byte[]> answer = connection.call().ask(List.of(message.encode()), deadline.remaining(settings.transfer()));
        if (answer.size() != 1) {
            throw new MessageException(peer + " answers in " + answer.size() + " frames, must be one");
        }
        return answer.getFirst();
    }

    private interface Exchange<T> {
        T with(Connection connection) throws P2pException, MessageException, PipeException;
    }

    /** A missing answer can mean that the connection was dead and nothing had noticed: retries once with a new one. */
    private <T> T exchange(Deadline deadline, Exchange<T> exchange) throws P2pException {
        takeTurn(deadline);
        try {
            lastUse = ticker.nanos();
            boolean fresh = current.isEmpty() || current.get().isOver();
            Connection connection = connect(deadline);
            while (true) {
                try {
                    return exchange.with(connection);
                } catch (MessageException e) {
                    connection.end();
                    if (fresh) {
                        throw new P2pException(Fault.PEER_GONE, String.valueOf(e.getMessage()), e);
                    }
                } catch (PipeException e) {
                    stats.add(Count.BROKEN, 1);
                    connection.end();
                    throw new P2pException(Fault.BROKEN, String.valueOf(e.getMessage()), e);
                } catch (InvalidFieldException e) {
                    stats.add(Count.MALFORMED, 1);
                    connection.end();
                    throw new P2pException(Fault.BROKEN, peer + ": " + e.getMessage(), e);
                } catch (P2pException e) {
                    if (e.fault() != Fault.OUT_OF_MEMORY) {
                        connection.end();
                    }
                    if (fresh || e.fault() != Fault.PEER_GONE) {
                        throw e;
                    }
                } catch (RuntimeException | Error e) {
                    connection.end();
                    throw e;
                }
                fresh = true;
                connection = connect(deadline);
            }
        } finally {
            lastUse = ticker.nanos();
            turn.unlock();
        }
    }

    private void takeTurn(Deadline deadline) throws P2pException {
        try {
            // No earlier exchange takes longer.
            Duration most = deadline.remaining(settings.transfer().multipliedBy(2));
            if (!Deadline.after(ticker, most).tryLock(turn)) {
                throw new P2pException(Fault.DEADLINE, peer + " is busy with other tensors");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted", e);
        }
    }

    private Connection connect(Deadline deadline) throws P2pException {
        if (closed) {
            throw new P2pException(Fault.CANCELLED, "the endpoint is closed");
        }
        if (current.isPresent() && !current.get().isOver()) {
            return current.get();
        }
        Connection connection = new Connection();
        current = Optional.of(connection);
        connection.open(deadline);
        return connection;
    }

    /** Connects, so that {@link #isGone} is true once the peer ends. */
    void watch(Deadline deadline) throws P2pException {
        // One that another thread is opening may fail because of that thread's deadline.
        if (current.isPresent() && current.get().isOpen()) {
            return;
        }
        takeTurn(deadline);
        try {
            Connection unusedConnection = connect(deadline);
        } finally {
            turn.unlock();
        }
    }

    /** Whether the last connection has ended. */
    boolean isGone() {
        return current.isEmpty() || current.get().isOver();
    }

    /** Whether there has been no connection and no use for that long. */
    boolean isUnused(Duration since) {
        return isGone() && !turn.isLocked() && ticker.nanos() - lastUse > since.toNanos();
    }

    @Override
    public void close() {
        closed = true;
        current.ifPresent(Connection::end);
    }
}
