package baton.pipe.p2p;

import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.GuardedReception;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.messages.SideChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.GetReply;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.BuddyPool;
import baton.pipe.PipeException;
import baton.pipe.Tensor;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import baton.pipe.p2p.SendStore.Outgoing;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One of many peers that exchange tensors by name: vLLM's P2pNcclEngine, with a deadline for every wait.
 *
 * <h2>Protocol</h2>
 * Control messages ({@link P2pMessage}) are sent by a DEALER socket to the peer's ROUTER. The socket's identity is this
 * endpoint's own address. NEW makes a wire between the two; after PUT and GET the tensor's bytes follow on it. Each endpoint makes a wire
 * of its own for its requests; the answers to them use the same wire. Each tensor has a checksum ({@link TensorChecksum}) that is checked
 * when it has arrived; after one that does not fit both connections end.
 *
 * <h2>Time and peers</h2>
 * Every exchange has a deadline. The end of a connection counts as the end of the peer: calls that wait for its tensors fail at
 * once, and so do later ones while nothing listens at its address. The next use connects again. Only allowed addresses are
 * connected to, wherever they come from, and only connections from allowed ones are served.
 *
 * <h2>Memory</h2>
 * Memory for a received tensor is reserved before the peer may send it; if there is no room the answer is delayed, and so is the
 * peer's sender. Tensors to be sent have at most as much memory; a peer that is slow to take them delays other peers' tensors for
 * a short time only, see {@link SendStore}. Tensors that are not taken expire.
 *
 * <h2>Threads</h2>
 * One virtual thread for each connection, one for each peer with queued tensors, one that removes expired tensors. Any thread may
 * use an endpoint.
 */
public final class P2pEndpoint implements TensorExchange {
    private static final Logger log = LoggerFactory.getLogger(P2pEndpoint.class);
    private static final String PORT = "P2P port";
    private static final Duration SWEEP = Duration.ofMillis(500);
    private static final Duration FORGET_LINK = Duration.ofMinutes(1);

    /** How long a requested tensor may be missing at the peer before the request fails. */
    private static final Duration APPEARS = Duration.ofSeconds(2);

    private final P2pSettings settings;
    private final PeerChannel channel;
    private final WireTransport transport;
    private final PeerAddress self;
    private final Ticker ticker;
    private final EndpointContext context;
    private final SideChannel.Listener listener;
    private final P2pStats stats = new P2pStats();
    private final ReceiveStore received;
    private final SendStore toSend;
    private final Map<PeerAddress, Peer> peers = new ConcurrentHashMap<>();
    private final CountDownLatch closing = new CountDownLatch(1);
    private volatile boolean closed;

    private P2pEndpoint(P2pSettings settings, PeerChannel channel, WireTransport transport, Ticker ticker)
            throws MessageException {
        this.settings = settings;
        this.channel = channel;
        this.transport = transport;
        this.ticker = ticker;
        this.received = new ReceiveStore(settings, stats, ticker);
        this.toSend = new SendStore(settings, stats, ticker);
        CountDownLatch ready = new CountDownLatch(1);
        settings.access().expectPeers();
        this.listener = channel.listen(
                settings.host(),
                settings.port(),
                new GuardedReception(settings.access(), PORT, caller -> arrived(caller, ready)));
        this.self = new PeerAddress(settings.host(), listener.port());
        this.context = new EndpointContext(self, settings, stats, channel, transport, ticker);
        ready.countDown();
    }

    /**
     * Listens for control messages.
     *
     * @param channel is closed by the endpoint
     * @param transport is closed by the endpoint
     * @throws MessageException if the address cannot be bound
     */
    public static P2pEndpoint open(P2pSettings settings, PeerChannel channel, WireTransport transport, Ticker ticker)
            throws MessageException {
        P2pEndpoint endpoint = new P2pEndpoint(settings, channel, transport, ticker);
        Thread.ofVirtual().name("p2p-expiry").start(endpoint::sweep);
        return endpoint;
    }

    @Override
    public PeerAddress address() {
        return self;
    }

    @Override
    public P2pStats stats() {
        stats.add(Count.REFUSED_PEERS, settings.access().takeRefused());
        return stats;
    }

    @Override
    public boolean prepare(boolean sends, boolean receives, KvMemory pool) {
        Optional<KvMemory.Device> device = pool instanceof KvMemory.Device of && transport.reaches(of.device())
                ? Optional.of(of)
                : Optional.empty();
        if (sends) {
            toSend.prepare(device);
        }
        if (receives) {
            received.prepare(device);
        }
        return device.isPresent();
    }

    /** Bytes of received tensors in the buffer, rounded up to the sizes of their pieces. */
    public long bufferUsed() {
        return received.bufferUsed();
    }

    /** Bytes that the memory of received tensors has from the system, without the pool's. */
    public long bufferReserved() {
        return received.bufferReserved();
    }

    /** Bytes that the memory of tensors to be sent has from the system. */
    public long sendReserved() {
        return toSend.reserved();
    }

    /** Bytes of received tensors in the pool. */
    public long poolUsed() {
        return received.poolUsed();
    }

    /** Bytes of tensors to be sent. */
    public long sendUsed() {
        return toSend.used();
    }

    @Override
    public boolean isSending() {
        return toSend.used() > 0;
    }

    @Override
    public long heldBytes() {
        return bufferUsed() + poolUsed();
    }

    @Override
    public void send(PeerAddress to, String tensorId, TensorHead head, Function<TensorBytes, KvFence> fill)
            throws P2pException {
        try {
            Peer peer = peer(to);
            long bytes = bytes(head);
            BuddyPool.Piece piece = toSend.reserve(to, tensorId, bytes, settings.transfer(), this::pushOut);
            Outgoing outgoing = new Outgoing(to, tensorId, head, piece, KvFence.PASSED, ticker.nanos());
            boolean handedOn = false;
            try {
                outgoing = outgoing.filled(fill.apply(piece.memory()));
                switch (settings.sendType()) {
                    case PUT -> {
                        outgoing.filled().await();
                        peer.link.put(tensorId, head, piece.memory());
                        toSend.taken(to);
                    }
                    case PUT_ASYNC -> {
                        peer.queue(outgoing);
                        handedOn = true;
                    }
                    case GET -> {
                        toSend.keep(outgoing);
                        handedOn = true;
                    }
                }
            } finally {
                if (!handedOn) {
                    toSend.free(outgoing);
                }
            }
        } catch (P2pException e) {
            stats.add(Count.SEND_FAILURES, 1);
            throw e;
        }
    }

    private Optional<String> pushOut(PeerAddress of) {
        return Optional.ofNullable(peers.get(of)).flatMap(Peer::pushOut);
    }

    private static long bytes(TensorHead head) throws P2pException {
        try {
            return Tensor.bytes(Tensor.Type.named(head.dtype()), head.shape());
        } catch (IllegalArgumentException e) {
            throw new P2pException(Fault.BROKEN, String.valueOf(e.getMessage()), e);
        }
    }

    private Peer peer(PeerAddress address) throws P2pException {
        if (!settings.access().mayConnect(address.host())) {
            stats.add(Count.REFUSED_PEERS, 1);
            throw new P2pException(
                    Fault.REFUSED, address + " is " + settings.access().notAllowed());
        }
        Peer peer = peers.computeIfAbsent(address, Peer::new);
        if (closed) {
            peer.close();
            throw new P2pException(Fault.CANCELLED, "the endpoint is closed");
        }
        return peer;
    }

    /** A peer that this endpoint sends to or receives from, and the tensors that are queued for it. */
    private final class Peer {
        private final PeerAddress address;
        private final PeerLink link;
        private final BlockingQueue<Outgoing> queue = new LinkedBlockingQueue<>();

        @GuardedBy("this")
        private boolean sending;

        private Peer(PeerAddress address) {
            this.address = address;
            this.link = new PeerLink(context, address, received::wake);
        }

        /** Queued tensors have their memory already, which bounds the queue. */
        private synchronized void queue(Outgoing outgoing) {
            queue.add(outgoing);
            if (!sending) {
                sending = true;
                Thread.ofVirtual().name("p2p-send-" + address).start(this::sendAll);
            }
        }

        private synchronized Optional<Outgoing> next() {
            Optional<Outgoing> next = closed ? Optional.empty() : Optional.ofNullable(queue.poll());
            sending = next.isPresent();
            return next;
        }

        private void sendAll() {
            for (Optional<Outgoing> next = next(); next.isPresent(); next = next()) {
                Outgoing outgoing = next.get();
                try {
                    outgoing.filled().await();
                    link.put(
                            outgoing.tensorId(),
                            outgoing.head(),
                            outgoing.piece().memory());
                    toSend.taken(address);
                } catch (P2pException e) {
                    failed(outgoing, e);
                } catch (RuntimeException | Error e) {
                    // This thread continues: no other one sends the queued tensors.
                    log.error("Sending {} to {}", outgoing.tensorId(), address, e);
                    failed(outgoing, new P2pException(Fault.BROKEN, e.toString(), e));
                } finally {
                    toSend.free(outgoing);
                }
            }
            if (closed) {
                drop("");
            }
        }

        /** Drops the rest of the group, which is useless without it; and the whole queue if the peer has gone. */
        private void failed(Outgoing outgoing, P2pException e) {
            stats.add(Count.SEND_FAILURES, 1);
            boolean gone = e.fault() == Fault.PEER_GONE;
            String group = ReceiveStore.Key.group(outgoing.tensorId());
            toSend.giveUp(address, group);
            int dropped = drop(gone ? "" : group);
            if (closed) {
                // A connection that this side ends is not logged.
                log.debug("{} was not sent to {}: {}", outgoing.tensorId(), address, e.getMessage());
            } else {
                log.warn(
                        "{} was not sent to {}, nor {} more: {}",
                        outgoing.tensorId(),
                        address,
                        dropped,
                        e.getMessage());
            }
        }

        /** Takes a group's tensors out of the queue; all if it is empty. */
        private int drop(String group) {
            int dropped = 0;
            for (Outgoing each : List.copyOf(queue)) {
                boolean member = group.isEmpty()
                        || ReceiveStore.Key.group(each.tensorId()).equals(group);
                if (member && queue.remove(each)) {
                    toSend.free(each);
                    stats.add(Count.SEND_FAILURES, 1);
                    dropped++;
                }
            }
            return dropped;
        }

        /** Drops the group of the tensor that was queued last. */
        private Optional<String> pushOut() {
            List<Outgoing> waiting = List.copyOf(queue);
            if (waiting.isEmpty()) {
                return Optional.empty();
            }
            String group = ReceiveStore.Key.group(waiting.getLast().tensorId());
            int dropped = drop(group);
            if (dropped == 0) {
                // The sending thread has taken it from the queue meanwhile.
                return Optional.empty();
            }
            stats.add(Count.PUSHED_OUT, dropped);
            log.warn(
                    "{} is slow: {} tensors of {} are not sent there, as others need the room",
                    address,
                    dropped,
                    group);
            return Optional.of(group);
        }

        private synchronized boolean isUnused() {
            return !sending && queue.isEmpty() && link.isUnused(FORGET_LINK);
        }

        private void close() {
            drop("");
            link.close();
        }
    }

    @Override
    public Received receive(PeerAddress from, String tensorId, Duration timeout) throws P2pException {
        Peer peer = peer(from);
        ReceiveStore.Key key = new ReceiveStore.Key(from, tensorId);
        Deadline deadline = Deadline.after(ticker, timeout);
        try {
            return switch (settings.sendType()) {
                case PUT, PUT_ASYNC -> {
                    if (!received.has(key)) {
                        peer.link.watch(deadline);
                    }
                    yield received.take(
                            key,
                            deadline,
                            () -> peer.link.isGone() ? Optional.of("its connection has ended") : Optional.empty());
                }
                case GET -> {
                    get(peer, key, deadline);
                    yield received.take(key, Deadline.after(ticker, Duration.ZERO), Optional::empty);
                }
            };
        } catch (P2pException e) {
            boolean cutShort = e.fault() == Fault.PEER_GONE || e.fault() == Fault.BROKEN;
            if (cutShort && deadline.isOver()) {
                throw new P2pException(
                        Fault.DEADLINE,
                        "%s did not come from %s within %s: %s".formatted(tensorId, from, deadline, e.getMessage()),
                        e);
            }
            throw e;
        }
    }

    private void get(Peer peer, ReceiveStore.Key key, Deadline deadline) throws P2pException {
        Deadline appears = deadline.atMost(APPEARS);
        long pause = Duration.ofMillis(5).toNanos();
        Incoming incoming = new Incoming(key, deadline);
        while (true) {
            Optional<TensorHead> head;
            try {
                head = peer.link.get(key.tensorId(), incoming::room, deadline);
            } catch (P2pException e) {
                incoming.failed(e);
                throw e;
            } catch (RuntimeException | Error e) {
                incoming.failed(new P2pException(Fault.BROKEN, e.toString(), e));
                throw e;
            }
            if (head.isPresent()) {
                incoming.arrived(head.get());
                return;
            }
            if (appears.isOver()) {
                throw new P2pException(Fault.MISSING, key.from() + " does not have " + key.tensorId());
            }
            LockSupport.parkNanos(pause);
            pause = Math.min(2 * pause, Duration.ofMillis(200).toNanos());
        }
    }

    /** A tensor with a known size and incomplete bytes. */
    private final class Incoming {
        private final ReceiveStore.Key key;
        private final Deadline deadline;
        private Optional<BuddyPool.Piece> piece = Optional.empty();

        private Incoming(ReceiveStore.Key key, Deadline deadline) {
            this.key = key;
            this.deadline = deadline;
        }

        private TensorBytes room(TensorHead head) throws P2pException {
            BuddyPool.Piece reserved = received.reserve(
                    key, bytes(head), deadline.atMost(settings.transfer().dividedBy(2)));
            piece = Optional.of(reserved);
            return reserved.memory();
        }

        private void arrived(TensorHead head) {
            piece.ifPresent(here -> received.arrived(key, head, here));
        }

        private void failed(P2pException why) {
            piece.ifPresent(here -> received.failed(key, here, why));
        }
    }

    @Override
    public void forget(String group) {
        received.forget(group);
    }

    @Override
    public void dropUnsent(String group) {
        toSend.forget(group);
        peers.values().forEach(peer -> {
            int unusedDropped = peer.drop(group);
        });
    }

    private Guest arrived(Caller caller, CountDownLatch ready) {
        try {
            // Without a timeout: the constructor sets the address right after it has begun to listen.
            ready.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        String identity = caller.identity();
        try {
            PeerAddress from = PeerAddress.parse("identity", identity);
            if (settings.access().mayConnect(from.host())) {
                return new Visit(caller, from);
            }
            settings.access()
                    .refuse(PORT + ": " + caller.host(), "it calls itself " + from + ", which is not an allowed peer");
        } catch (InvalidFieldException e) {
            stats.add(Count.MALFORMED, 1);
            log.debug("{}: {}", caller.host(), e.getMessage());
        }
        caller.hangUp();
        return frames -> {};
    }

    /** The connection of a peer. Used by the connection's thread. */
    private final class Visit implements Guest {
        private final Caller caller;
        private final PeerAddress from;
        private Optional<Wire> wire = Optional.empty();

        private Visit(Caller caller, PeerAddress from) {
            this.caller = caller;
            this.from = from;
        }

        @Override
        public void received(List<byte[]> frames) throws MessageException {
            try {
                if (frames.size() != 1) {
                    throw new InvalidFieldException("message", "has " + frames.size() + " frames, must have one");
                }
                switch (P2pMessage.decode(frames.getFirst())) {
                    case P2pMessage.New(byte[] uniqueId) -> connect(uniqueId);
                    case P2pMessage.Put(String tensorId, TensorHead head) -> put(tensorId, head);
                    case P2pMessage.Get(String tensorId) -> get(tensorId);
                }
            } catch (InvalidFieldException e) {
                stats.add(Count.MALFORMED, 1);
                throw new MessageException(from + ": " + e.getMessage(), e);
            } catch (PipeException e) {
                stats.add(Count.BROKEN, 1);
                throw new MessageException(from + ": " + e.getMessage(), e);
            }
        }

        private void connect(byte[] uniqueId) throws PipeException {
            wire.ifPresent(Wire::close);
            wire = Optional.empty();
            wire = Optional.of(transport.join(uniqueId, from.host(), settings.exchange()));
        }

        private Wire wire() {
            return wire.orElseThrow(() -> new InvalidFieldException("message.cmd", "asks for bytes before NEW"));
        }

        private void put(String tensorId, TensorHead head) throws MessageException, PipeException {
            Wire bytes = wire();
            Incoming incoming = new Incoming(new ReceiveStore.Key(from, tensorId), Deadline.never(ticker));
            TensorBytes room;
            try {
                room = incoming.room(head);
            } catch (P2pException e) {
                if (e.fault() == Fault.BROKEN) {
                    throw new InvalidFieldException("message.dtype", String.valueOf(e.getMessage()), e);
                }
                log.debug("{}: {}", from, e.getMessage());
                caller.answer(List.of(PutReply.OUT_OF_MEMORY.encode()));
                return;
            }
            try {
                caller.answer(List.of(PutReply.TAKEN.encode()));
                bytes.receive(room, settings.transfer());
                TensorChecksum.check(tensorId, head, room, stats);
            } catch (P2pException e) {
                incoming.failed(e);
                // The wire may have lost its place: the peer connects anew.
                throw new MessageException(from + ": " + e.getMessage(), e);
            } catch (MessageException | PipeException | RuntimeException | Error e) {
                incoming.failed(new P2pException(Fault.BROKEN, tensorId + " broke off: " + e.getMessage(), e));
                throw e;
            }
            incoming.arrived(head);
        }

        private void get(String tensorId) throws MessageException, PipeException {
            Wire bytes = wire();
            Optional<Outgoing> wanted = toSend.take(from, tensorId);
            if (wanted.isEmpty()) {
                caller.answer(List.of(new GetReply.Missing().encode()));
                return;
            }
            Outgoing outgoing = wanted.get();
            try {
                outgoing.filled().await();
                TensorBytes data = outgoing.piece().memory();
                P2pMessage.Checksum checksum = TensorChecksum.of(tensorId, outgoing.head(), data);
                caller.answer(List.of(new GetReply.Here(outgoing.head().withChecksum(checksum)).encode()));
                bytes.send(data, settings.transfer());
                stats.add(Count.SENT_TENSORS, 1);
                stats.add(Count.SENT_BYTES, data.byteSize());
            } finally {
                toSend.free(outgoing);
            }
        }

        @Override
        public void left() {
            wire.ifPresent(Wire::close);
        }
    }

    private void sweep() {
        try {
            while (!closing.await(SWEEP.toNanos(), TimeUnit.NANOSECONDS)) {
                received.expire();
                toSend.expire();
                peers.values().removeIf(Peer::isUnused);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        closed = true;
        closing.countDown();
        received.close();
        peers.values().forEach(Peer::close);
        listener.close();
        channel.close();
        transport.close();
        toSend.close();
    }
}
