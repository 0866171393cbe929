package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.ListenAddress;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.Region;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import baton.transfer.mooncake.LocalBuffers.Buffer;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.InstantSource;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/*
 * Threads: one for each connection that is served and for each lane, which block in system calls that copy between sockets and registered
 * memory; a clock, which ends late transfers; virtual ones for handshakes, notifications, and connections that are only watched. A transfer
 * is cancelled by closing its sockets (MemoryUse), because Mooncake's protocol cannot cancel a request.
 */

/**
 * Mooncake's transfer engine with its TCP transport, spoken with Mooncake's own engines (0.3.11 and later) and with agents of this class.
 *
 * <p>A peer's metadata are its segment's name as text: the {@code host:port} of its handshake daemon, or its name at the metadata server.
 * Transfers name absolute addresses of the peer's process; the peer checks that each is within a buffer that it has registered.
 * Mooncake carries notifications as text in JSON; other bytes are encoded, for agents of Baton.
 *
 * <p>Mooncake's protocols have neither authentication nor encryption: each host that may connect can read and write all registered memory.
 */
public final class MooncakeAgent extends SegmentAgent<MooncakePeer, MooncakeTransfer> {
    private static final Logger LOG = LoggerFactory.getLogger(MooncakeAgent.class);
    private static final Duration TICK = Duration.ofMillis(20);

    /** The limit of connections to different peers that are made at once. */
    private static final int CONNECTIONS = 64;

    private final MooncakeAgentSettings settings;
    private final DataServer server;
    private final HandshakeDaemon daemon;
    private final PeerAddress rpc;
    private final String name;
    private final CountDownLatch stopped = new CountDownLatch(1);

    /**
     * An agent that listens.
     *
     * @throws TransferException if it cannot listen there, or make itself known
     * @throws ConfigException if the port would be open to the network although no peers are listed, see
     *     {@link PeerAccess#requireSafeByAddress}
     */
    public static MooncakeAgent open(MooncakeAgentSettings settings) throws TransferException {
        return open(settings, Ticker.system());
    }

    /** @param ticker the clock of timeouts */
    public static MooncakeAgent open(MooncakeAgentSettings settings, Ticker ticker) throws TransferException {
        ListenAddress.requireOfOneHost("host", settings.host());
        settings.access().ifPresent(access -> access.requireSafeByAddress("host", settings.host()));
        MooncakeAgent agent;
        try {
            agent = new MooncakeAgent(settings, ticker);
        } catch (IOException e) {
            throw new TransferException(
                    "cannot listen at host=%s port=%d: %s".formatted(settings.host(), settings.port(), e.getMessage()),
                    e);
        }
        try {
            agent.directory.publish(agent.rpc, agent.described());
        } catch (TransferException e) {
            agent.close();
            throw e;
        }
        return agent;
    }

    private MooncakeAgent(MooncakeAgentSettings settings, Ticker ticker) throws IOException {
        super(settings.limits(), settings.access(), settings.metadata(), ticker, MooncakePeer.class, CONNECTIONS);
        this.settings = settings;
        this.server = DataServer.open(listenAt(settings.host(), 0), buffers, settings, this::admits, ticker);
        try {
            this.daemon =
                    HandshakeDaemon.open(listenAt(settings.host(), settings.port()), new Answers(), settings, ticker);
        } catch (IOException | RuntimeException e) {
            server.close();
            throw e;
        }
        this.rpc = new PeerAddress(settings.host(), daemon.port());
        this.name = directory.ownName(rpc);
        settings.access().ifPresent(PeerAccess::expectPeersByAddress);
        server.start();
        daemon.start();
        Thread.ofPlatform().daemon().name("mooncake-clock-" + rpc.port()).start(this::endLate);
    }

    private static InetSocketAddress listenAt(String host, int port) throws IOException {
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new IOException("no such host");
        }
        return address;
    }

    /** The segment's name: that of {@link #rpc}, or the one at the metadata server. */
    @Override
    public String name() {
        return name;
    }

    @Override
    public PeerAddress rpc() {
        return rpc;
    }

    /** The server of transfers that peers start. */
    DataServer server() {
        return server;
    }

    MooncakeAgentSettings settings() {
        return settings;
    }

    private SegmentDescriptor described() {
        return new SegmentDescriptor(
                name,
                SegmentDescriptor.TCP,
                Optional.of(settings.host()),
                server.port(),
                SegmentDescriptor.VERSION,
                buffers.described());
    }

    private byte[] ownJson() {
        return described()
                .toJson(json, InstantSource.system().instant())
                .toString()
                .getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public Registration register(Region region) throws TransferException {
        MemorySegment memory = region.requireHost("the Mooncake agent in Java").host();
        if (!memory.isAccessibleBy(new Thread())) {
            throw new TransferException("memory at %d of %d bytes is confined to one thread, must be of a shared arena"
                    .formatted(memory.address(), memory.byteSize()));
        }
        Buffer buffer = buffers.add(memory);
        try {
            publish();
        } catch (TransferException e) {
            boolean unusedRemoved = buffers.remove(buffer);
            throw e;
        }
        return () -> {
            if (buffers.remove(buffer)) {
                try {
                    publish();
                } catch (TransferException e) {
                    LOG.warn("peers are not told that memory is not registered any more: {}", e.getMessage());
                }
            }
        };
    }

    /** Publishes the descriptor. Calls run one after the other, so the last one has the current registrations. */
    private synchronized void publish() throws TransferException {
        directory.publish(rpc, described());
    }

    private boolean admits(InetAddress from) {
        boolean admitted =
                settings.access().map(access -> access.admitsByAddress(from)).orElse(true);
        if (!admitted) {
            settings.access()
                    .ifPresent(access -> access.refuse("Mooncake peer: " + from, "it is " + access.notAllowed()));
        }
        return admitted;
    }

    @Override
    void requireAllowed(String segment, SegmentDirectory.Located found) throws TransferException {
        if (!mayConnect(found.rpc().host())) {
            throw new TransferException("segment %s is at host=%s, which is not an allowed peer"
                    .formatted(segment, found.rpc().host()));
        }
    }

    @Override
    int number(String segment) {
        return 0;
    }

    @Override
    MooncakePeer open(String segment, int number, SegmentDirectory.Located found, Deadline deadline)
            throws TransferException {
        return MooncakePeer.open(this, segment, found, deadline);
    }

    @Override
    MooncakeTransfer prepare(MooncakePeer peer, SegmentTransfer.Asked asked) {
        return new MooncakeTransfer(peer, asked, ticker());
    }

    @Override
    void begin(MooncakePeer peer, MooncakeTransfer transfer) {
        transfer.cut();
        peer.begin(transfer);
    }

    private JsonNode parsed(byte[] text) throws IOException {
        try {
            return json.readTree(text);
        } catch (JacksonException e) {
            throw new IOException("a handshake message is not JSON: " + e.getOriginalMessage(), e);
        }
    }

    /** This engine's answers to its peers. */
    private final class Answers implements HandshakeDaemon.Handler {
        @Override
        public boolean admits(InetAddress from) {
            return MooncakeAgent.this.admits(from);
        }

        @Override
        public byte[] answer(HandshakeMessage message) throws IOException {
            return switch (message.type()) {
                case METADATA -> ownJson();
                case NOTIFY -> bytes(received(parsed(message.json())));
                case PROBE -> bytes(json.createObjectNode().put("status", "success"));
                case CONNECTION, UNTYPED -> bytes(noConnection());
            };
        }

        private static byte[] bytes(ObjectNode answer) {
            return (answer + "\n").getBytes(StandardCharsets.UTF_8);
        }

        /** Connections are RDMA's; an engine without it answers with empty fields. */
        private ObjectNode noConnection() {
            ObjectNode answer = json.createObjectNode();
            for (String field : List.of("payload", "local_nic_path", "local_gid", "peer_nic_path", "reply_msg")) {
                answer.put(field, "");
            }
            answer.put("local_lid", 0).putArray("qp_num");
            return answer;
        }

        /** An empty message refuses. */
        private ObjectNode received(JsonNode notification) {
            String from = notification.path("name").asString("");
            byte[] text =
                    NotificationText.message(notification.path("notify_msg").asString(""));
            boolean taken = from.length() <= SegmentName.LONGEST
                    && text.length <= settings.limits().messageBytes()
                    && inbox.add(new Notification(from, text));
            if (taken) {
                tellProgress();
            }
            return json.createObjectNode().put("name", "").put("notify_msg", taken ? "success" : "");
        }
    }

    private void endLate() {
        try {
            while (!stopped.await(TICK.toMillis(), TimeUnit.MILLISECONDS)) {
                peers.values().forEach(MooncakePeer::endLate);
                server.endStalled();
                daemon.endLate();
            }
        } catch (InterruptedException e) {
            throw new IllegalStateException("this thread is never interrupted", e);
        }
    }

    @Override
    public void close() {
        if (closed.getAndSet(true)) {
            return;
        }
        directory.close();
        daemon.close();
        server.close();
        for (MooncakePeer peer : List.copyOf(peers.values())) {
            peer.failAll(Cause.CANCELLED, "the agent was closed");
            peer.end("the agent was closed");
        }
        buffers.close();
        stopped.countDown();
    }
}
