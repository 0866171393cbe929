package baton.pipe.p2p;

import baton.kv.ConfigException;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.PeerGreeting;
import baton.messages.PeerSecret;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.GetReply;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * What this endpoint does at a peer: one connection for control messages, and one for bytes that is made with the first tensor. Both end
 * together, and are made again with the next use; so a peer that comes back at the same address is connected to anew.
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
    private final Runnable whenEnded;
    private final ReentrantLock turn = new ReentrantLock(true);

    /** Changed by who has the turn. */
    private volatile Optional<Connection> current = Optional.empty();

    private volatile long lastUse = System.nanoTime();
    private volatile boolean closed;

    PeerLink(
            PeerAddress self,
            PeerAddress peer,
            P2pSettings settings,
            P2pStats stats,
            PeerChannel channel,
            WireTransport transport,
            Runnable whenEnded) {
        this.self = self;
        this.peer = peer;
        this.settings = settings;
        this.stats = stats;
        this.channel = channel;
        this.transport = transport;
        this.whenEnded = whenEnded;
    }

    /** From connecting to the end of either connection. */
    private final class Connection {
        private Optional<PeerChannel.Call> call = Optional.empty();
        private Optional<AutoCloseable> data = Optional.empty();
        private Optional<Wire> wire = Optional.empty();
        private boolean over;

        private void open(Until until) throws P2pException {
            try {
                PeerChannel.Call opened = channel.call(
                        peer.host(), peer.port(), self.toString(), until.within(settings.exchange()), this::end);
                if (!keep(opened, true)) {
                    throw new P2pException(Fault.PEER_GONE, peer + " has gone");
                }
                Optional<PeerSecret> secret = settings.access().secret();
                if (secret.isPresent()) {
                    PeerGreeting.greet(
                            opened, secret.get(), self.toString(), peer.toString(), until.within(settings.exchange()));
                }
            } catch (MessageException e) {
                end();
                throw new P2pException(Fault.PEER_GONE, peer + " is not there: " + e.getMessage(), e);
            } catch (RuntimeException | Error e) {
                end();
                throw e;
            }
        }

        /** Lets the end of the connection end this too; false if it was over before. */
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
                quietly(part);
            }
            return !late;
        }

        /** The connection for bytes, made with the first use. */
        private Wire wire(Until until) throws P2pException {
            if (wire.isPresent()) {
                return wire.get();
            }
            try (WireTransport.Offer offer = transport.offer(settings.host())) {
                keep(offer, false);
                call().tell(List.of(new P2pMessage.New(offer.id()).encode()), until.within(settings.exchange()));
                Wire made = offer.accept(until.within(settings.exchange()));
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

        private PeerChannel.Call call() {
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
            control.ifPresent(PeerLink::quietly);
            bytes.ifPresent(PeerLink::quietly);
            whenEnded.run();
        }
    }

    /** Has the peer take a tensor. */
    void put(String tensorId, TensorHead head, MemorySegment data) throws P2pException {
        Until until = Until.itsPartsEnd();
        Boolean unusedDone = exchange(until, connection -> {
            Wire wire = connection.wire(until);
            byte[] answer = ask(connection, new P2pMessage.Put(tensorId, head), until);
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

    /** Where a tensor that is got goes. */
    interface Room {
        MemorySegment of(TensorHead head) throws P2pException;
    }

    /** Gets a tensor from the peer; empty if it does not have it. */
    Optional<TensorHead> get(String tensorId, Room room, Until until) throws P2pException {
        return exchange(until, connection -> {
            Wire wire = connection.wire(until);
            return switch (GetReply.decode(ask(connection, new P2pMessage.Get(tensorId), until))) {
                case GetReply.Missing _ -> Optional.empty();
                case GetReply.Here(TensorHead head) -> {
                    wire.receive(placeFor(head, room, connection), until.within(settings.transfer()));
                    yield Optional.of(head);
                }
            };
        });
    }

    /** The bytes come in any case: without a place for them the connection is of no use any more. */
    private static MemorySegment placeFor(TensorHead head, Room room, Connection connection) throws P2pException {
        try {
            return room.of(head);
        } catch (P2pException e) {
            connection.end();
            throw e;
        }
    }

    private byte[] ask(Connection connection, P2pMessage message, Until until) throws MessageException {
        List<byte[]> answer = connection.call().ask(List.of(message.encode()), until.within(settings.transfer()));
        if (answer.size() != 1) {
            throw new MessageException(peer + " answers in " + answer.size() + " frames, must be one");
        }
        return answer.getFirst();
    }

    private interface Exchange<T> {
        T with(Connection connection) throws P2pException, MessageException, PipeException;
    }

    /** An answer that does not come may be due to a connection that is over unnoticed: once it is tried with a new one. */
    private <T> T exchange(Until until, Exchange<T> exchange) throws P2pException {
        takeTurn(until);
        try {
            lastUse = System.nanoTime();
            boolean fresh = current.isEmpty() || current.get().isOver();
            Connection connection = connect(until);
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
                } catch (ConfigException e) {
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
                connection = connect(until);
            }
        } finally {
            lastUse = System.nanoTime();
            turn.unlock();
        }
    }

    private void takeTurn(Until until) throws P2pException {
        try {
            // Each exchange before takes that long at most.
            Duration most = until.within(settings.transfer().multipliedBy(2));
            if (!turn.tryLock(most.toNanos(), TimeUnit.NANOSECONDS)) {
                throw new P2pException(Fault.DEADLINE, peer + " is busy with other tensors");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted", e);
        }
    }

    private Connection connect(Until until) throws P2pException {
        if (closed) {
            throw new P2pException(Fault.CANCELLED, "the endpoint is closed");
        }
        if (current.isPresent() && !current.get().isOver()) {
            return current.get();
        }
        Connection connection = new Connection();
        current = Optional.of(connection);
        connection.open(until);
        return connection;
    }

    /** Connects, so that {@link #isGone} tells whether the peer is there. */
    void watch(Until until) throws P2pException {
        // One that is being opened may fail for reasons of who opens it, such as its deadline.
        if (current.isPresent() && current.get().isOpen()) {
            return;
        }
        takeTurn(until);
        try {
            Connection unusedConnection = connect(until);
        } finally {
            turn.unlock();
        }
    }

    /** Whether the last connection has ended. */
    boolean isGone() {
        return current.isEmpty() || current.get().isOver();
    }

    /** Whether nothing is held, and has not been for that long. */
    boolean isUnused(Duration since) {
        return isGone() && !turn.isLocked() && System.nanoTime() - lastUse > since.toNanos();
    }

    @Override
    public void close() {
        closed = true;
        current.ifPresent(Connection::end);
    }

    private static void quietly(AutoCloseable closeable) {
        try {
            closeable.close();
        } catch (Exception e) {
            throw new AssertionError("closing does not fail", e);
        }
    }
}
