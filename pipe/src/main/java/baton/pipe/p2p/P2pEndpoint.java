package baton.pipe.p2p;

import baton.kv.ConfigException;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.messages.PeerGreeting;
import baton.messages.SideChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.GetReply;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.PipeException;
import baton.pipe.Tensor;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import baton.pipe.p2p.SendStore.Outgoing;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
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
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One of many peers that exchange tensors by name: vLLM's P2pNcclEngine, with an end to every wait.
 *
 * <h2>Protocol</h2>
 * Control messages ({@link P2pMessage}) go by a DEALER socket, whose identity is this endpoint's own address, to the other one's ROUTER.
 * NEW makes a wire between the two; PUT and GET are each followed by the tensor's bytes on it. Each endpoint makes a wire of its own for
 * what it asks for; who is asked uses the asker's.
 *
 * <h2>Time and peers</h2>
 * Every exchange has a deadline. The end of a connection is the end of the peer: who waits for its tensors fails at once, and so does who
 * begins to wait while nobody listens at its address. The next use connects again. Only allowed addresses are connected to, whoever names
 * them, and only connections from allowed ones are served.
 *
 * <h2>Memory</h2>
 * Received tensors have their memory before the peer is told to send them; a peer whose tensor finds no room waits for the answer, and
 * its own sender with it. Tensors to be sent have at most as much; a peer that is slow to take them holds those for others up for a
 * moment only, see {@link SendStore}. What nobody takes goes after a while.
 *
 * <h2>Threads</h2>
 * One virtual thread for each connection, one for each peer that tensors are queued for, one that looks for what has expired. Any thread
 * may use an endpoint.
 */
public final class P2pEndpoint implements TensorExchange {
    private static final Logger log = LoggerFactory.getLogger(P2pEndpoint.class);
    private static final Duration SWEEP = Duration.ofMillis(500);
    private static final Duration FORGET_LINK = Duration.ofMinutes(1);

    /** How long a tensor that is got may not be there yet. */
    private static final Duration APPEARS = Duration.ofSeconds(2);

    private final P2pSettings settings;
    private final PeerChannel channel;
    private final WireTransport transport;
    private final PeerAddress self;
    private final SideChannel.Listener listener;
    private final P2pStats stats = new P2pStats();
    private final ReceiveStore received;
    private final SendStore toSend;
    private final Map<PeerAddress, Peer> peers = new ConcurrentHashMap<>();
    private final CountDownLatch closing = new CountDownLatch(1);
    private volatile boolean closed;

    private P2pEndpoint(P2pSettings settings, PeerChannel channel, WireTransport transport) throws MessageException {
        this.settings = settings;
        this.channel = channel;
        this.transport = transport;
        this.received = new ReceiveStore(settings, stats);
        this.toSend = new SendStore(settings, stats);
        CountDownLatch ready = new CountDownLatch(1);
        settings.access().expectPeers();
        this.listener = channel.listen(settings.host(), settings.port(), new PeerChannel.Reception() {
            @Override
            public Guest arrived(Caller caller) {
                return P2pEndpoint.this.arrived(caller, ready);
            }

            @Override
            public boolean admits(InetAddress from) {
                return P2pEndpoint.this.admits(from);
            }
        });
        this.self = new PeerAddress(settings.host(), listener.port());
        ready.countDown();
    }

    /**
     * Takes control messages from now on.
     *
     * @param channel is the endpoint's from now on
     * @param transport is the endpoint's too
     * @throws MessageException if the address cannot be had
     */
    public static P2pEndpoint open(P2pSettings settings, PeerChannel channel, WireTransport transport)
            throws MessageException {
        P2pEndpoint endpoint = new P2pEndpoint(settings, channel, transport);
        Thread.ofVirtual().name("p2p-expiry").start(endpoint::sweep);
        return endpoint;
    }

    @Override
    public PeerAddress address() {
        return self;
    }

    @Override
    public P2pStats stats() {
        return stats;
    }

    /** Bytes of received tensors in the buffer, with what their sizes are rounded up to. */
    public long bufferUsed() {
        return received.bufferUsed();
    }

    /** Bytes of received tensors in the pool. */
    public long poolUsed() {
        return received.poolUsed();
    }

    /** Bytes of tensors on their way out. */
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

    // ---- sending

    @Override
    public void send(PeerAddress to, String tensorId, TensorHead head, Consumer<MemorySegment> fill)
            throws P2pException {
        try {
            Peer peer = peer(to);
            long bytes = bytes(head);
            BuddyPool.Piece piece = toSend.reserve(to, tensorId, bytes, settings.transfer(), this::pushOut);
            Outgoing outgoing = new Outgoing(to, tensorId, head, piece, System.nanoTime());
            boolean handedOn = false;
            try {
                fill.accept(piece.memory());
                switch (settings.sendType()) {
                    case PUT -> {
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

    /** A peer that this endpoint has to do with, and what is queued for it. */
    private final class Peer {
        private final PeerAddress address;
        private final PeerLink link;
        private final BlockingQueue<Outgoing> queue = new LinkedBlockingQueue<>();
        private boolean sending;

        private Peer(PeerAddress address) {
            this.address = address;
            this.link = new PeerLink(self, address, settings, stats, channel, transport, received::wake);
        }

        /** What is in the queue has its memory already, which bounds it. */
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
                    link.put(
                            outgoing.tensorId(),
                            outgoing.head(),
                            outgoing.piece().memory());
                    toSend.taken(address);
                } catch (P2pException e) {
                    failed(outgoing, e);
                } catch (RuntimeException | Error e) {
                    // This thread goes on: no other sends what is queued.
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

        /** The rest of what it belongs to is of no use; nor is anything if the peer has gone. */
        private void failed(Outgoing outgoing, P2pException e) {
            stats.add(Count.SEND_FAILURES, 1);
            boolean gone = e.fault() == Fault.PEER_GONE;
            String group = ReceiveStore.Key.group(outgoing.tensorId());
            toSend.giveUp(address, group);
            int dropped = drop(gone ? "" : group);
            log.warn("{} was not sent to {}, nor {} more: {}", outgoing.tensorId(), address, dropped, e.getMessage());
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

        /** Drops what was queued last, with all that belongs to it. */
        private Optional<String> pushOut() {
            List<Outgoing> waiting = List.copyOf(queue);
            if (waiting.isEmpty()) {
                return Optional.empty();
            }
            String group = ReceiveStore.Key.group(waiting.getLast().tensorId());
            int dropped = drop(group);
            if (dropped == 0) {
                // It has left the queue meanwhile, to be sent.
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

    // ---- receiving

    @Override
    public Received receive(PeerAddress from, String tensorId, Duration timeout) throws P2pException {
        Peer peer = peer(from);
        ReceiveStore.Key key = new ReceiveStore.Key(from, tensorId);
        Until until = Until.in(timeout);
        try {
            return switch (settings.sendType()) {
                case PUT, PUT_ASYNC -> {
                    if (!received.has(key)) {
                        peer.link.watch(until);
                    }
                    yield received.take(
                            key,
                            until.within(timeout),
                            () -> peer.link.isGone() ? Optional.of("its connection has ended") : Optional.empty());
                }
                case GET -> {
                    get(peer, key, until);
                    yield received.take(key, Duration.ZERO, Optional::empty);
                }
            };
        } catch (P2pException e) {
            boolean cutShort = e.fault() == Fault.PEER_GONE || e.fault() == Fault.BROKEN;
            if (cutShort && until.isOver()) {
                throw new P2pException(
                        Fault.DEADLINE,
                        "%s did not come from %s within %d ms: %s"
                                .formatted(tensorId, from, timeout.toMillis(), e.getMessage()),
                        e);
            }
            throw e;
        }
    }

    private void get(Peer peer, ReceiveStore.Key key, Until until) throws P2pException {
        Until appears = Until.in(until.within(APPEARS));
        long pause = Duration.ofMillis(5).toNanos();
        Incoming incoming = new Incoming(key, until);
        while (true) {
            Optional<TensorHead> head;
            try {
                head = peer.link.get(key.tensorId(), incoming::room, until);
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

    /** A tensor between the moment in which its size is known and the one in which it is here. */
    private final class Incoming {
        private final ReceiveStore.Key key;
        private final Until until;
        private Optional<BuddyPool.Piece> piece = Optional.empty();

        private Incoming(ReceiveStore.Key key, Until until) {
            this.key = key;
            this.until = until;
        }

        private MemorySegment room(TensorHead head) throws P2pException {
            BuddyPool.Piece reserved = received.reserve(
                    key, bytes(head), until.within(settings.transfer().dividedBy(2)));
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

    // ---- being called

    private Guest arrived(Caller caller, CountDownLatch ready) {
        try {
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
            refuse(caller.address(), "it calls itself " + from + ", which is not an allowed peer");
        } catch (ConfigException e) {
            stats.add(Count.MALFORMED, 1);
            log.debug("{}: {}", caller.address(), e.getMessage());
        }
        caller.hangUp();
        return frames -> {};
    }

    private boolean admits(InetAddress from) {
        boolean admitted = settings.access().admits(from);
        if (!admitted) {
            refuse(from, "it is " + settings.access().notAllowed());
        }
        return admitted;
    }

    private void refuse(InetAddress from, String why) {
        stats.add(Count.REFUSED_PEERS, 1);
        settings.access().refuse("P2P port: " + from.getHostAddress(), why);
    }

    /** A peer's connection. Used by the connection's thread. */
    private final class Visit implements Guest {
        private final Caller caller;
        private final PeerAddress from;
        /** Where there is a secret. */
        private final Optional<PeerGreeting> greeting;

        private Optional<Wire> wire = Optional.empty();

        private Visit(Caller caller, PeerAddress from) {
            this.caller = caller;
            this.from = from;
            this.greeting = settings.access()
                    .secret()
                    .map(secret -> new PeerGreeting(secret, caller.identity(), self.toString()));
        }

        @Override
        public void received(List<byte[]> frames) throws MessageException {
            if (greeting.isPresent() && !greeting.get().isDone()) {
                greet(greeting.get(), frames);
                return;
            }
            try {
                if (frames.size() != 1) {
                    throw new ConfigException("message", "has " + frames.size() + " frames, must have one");
                }
                switch (P2pMessage.decode(frames.getFirst())) {
                    case P2pMessage.New(byte[] uniqueId) -> connect(uniqueId);
                    case P2pMessage.Put(String tensorId, TensorHead head) -> put(tensorId, head);
                    case P2pMessage.Get(String tensorId) -> get(tensorId);
                }
            } catch (ConfigException e) {
                stats.add(Count.MALFORMED, 1);
                throw new MessageException(from + ": " + e.getMessage(), e);
            } catch (PipeException e) {
                stats.add(Count.BROKEN, 1);
                throw new MessageException(from + ": " + e.getMessage(), e);
            }
        }

        @Override
        public boolean isGreeted() {
            return greeting.isEmpty() || greeting.get().isDone();
        }

        private void greet(PeerGreeting begun, List<byte[]> frames) throws MessageException {
            List<byte[]> answer;
            try {
                answer = begun.answer(frames);
            } catch (MessageException e) {
                refuse(caller.address(), String.valueOf(e.getMessage()));
                throw e;
            }
            caller.answer(answer);
        }

        private void connect(byte[] uniqueId) throws PipeException {
            wire.ifPresent(Wire::close);
            wire = Optional.empty();
            wire = Optional.of(transport.join(uniqueId, from.host(), settings.exchange()));
        }

        private Wire wire() {
            return wire.orElseThrow(() -> new ConfigException("message.cmd", "asks for bytes before NEW"));
        }

        private void put(String tensorId, TensorHead head) throws MessageException, PipeException {
            Wire bytes = wire();
            Incoming incoming = new Incoming(new ReceiveStore.Key(from, tensorId), Until.itsPartsEnd());
            MemorySegment room;
            try {
                room = incoming.room(head);
            } catch (P2pException e) {
                if (e.fault() == Fault.BROKEN) {
                    throw new ConfigException("message.dtype", String.valueOf(e.getMessage()), e);
                }
                log.debug("{}: {}", from, e.getMessage());
                caller.answer(List.of(PutReply.OUT_OF_MEMORY.encode()));
                return;
            }
            try {
                caller.answer(List.of(PutReply.TAKEN.encode()));
                bytes.receive(room, settings.transfer());
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
                caller.answer(List.of(new GetReply.Here(outgoing.head()).encode()));
                MemorySegment data = outgoing.piece().memory();
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

    // ---- the end

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
