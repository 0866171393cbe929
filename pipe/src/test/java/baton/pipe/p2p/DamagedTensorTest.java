package baton.pipe.p2p;

import static baton.pipe.p2p.P2pEndpointTest.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pSettings.SendType;
import baton.pipe.p2p.P2pStats.Count;
import baton.pipe.p2p.TensorExchange.Received;
import baton.pipe.tcp.TcpTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Tensors of which bytes or announcement were changed on their way. */
@Timeout(300)
class DamagedTensorTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final long BUFFER = 1 << 20;
    private static final TensorHead HEAD =
            new TensorHead("uint8", List.of(10L, 100L), Optional.of(new Origin(1, "0123abcd")));

    private final List<P2pEndpoint> endpoints = new ArrayList<>();

    @AfterEach
    void close() {
        endpoints.forEach(P2pEndpoint::close);
    }

    private P2pEndpoint endpoint(SendType type, WireTransport wires) throws MessageException {
        P2pSettings settings = new P2pSettings(
                HOST,
                0,
                type,
                BUFFER,
                0,
                PeerAccess.of(JsonFields.parse("", "{}"), "kv_ip", HOST, List.of()),
                SOON,
                SOON,
                SOON);
        P2pEndpoint endpoint = P2pEndpoint.open(settings, new ZeroMqPeerChannel(), wires, Ticker.system());
        endpoints.add(endpoint);
        return endpoint;
    }

    @ParameterizedTest
    @EnumSource(SendType.class)
    void aTensorWithAFlippedBitFailsAndTheNextOneArrives(SendType type) throws Exception {
        AtomicBoolean flips = new AtomicBoolean(true);
        P2pEndpoint taker = endpoint(type, new Flipping(flips));
        P2pEndpoint sender = endpoint(type, new Flipping(flips));

        sender.send(taker.address(), "bad#layer", HEAD, P2pEndpointTest.filled(7));
        assertCorrupt(taker, sender.address(), "bad#layer");
        assertThat(taker.bufferUsed()).isZero();
        flips.set(false);
        sender.send(taker.address(), "good#layer", HEAD, P2pEndpointTest.filled(7));
        try (Received tensor = taker.receive(sender.address(), "good#layer", SOON)) {
            assertThat(tensor.data().host().toArray(ValueLayout.JAVA_BYTE)).containsOnly(7);
        }
        assertThat(taker.stats().get(Count.CORRUPT)).isEqualTo(1);
        assertThat(taker.stats().get(Count.UNCHECKED_TENSORS)).isZero();
    }

    private static void assertCorrupt(P2pEndpoint taker, PeerAddress from, String tensorId) {
        assertThatThrownBy(() -> taker.receive(from, tensorId, SOON))
                .isInstanceOfSatisfying(
                        P2pException.class,
                        e -> assertThat(e.fault()).as(e.getMessage()).isEqualTo(Fault.CORRUPT))
                .hasMessageContaining("was damaged on its way");
    }

    /** Another layer's, another shape or another prompt: one bit makes one of the other. */
    @Test
    void aTensorWithADamagedAnnouncementIsRefused() throws Exception {
        P2pEndpoint taker = endpoint(SendType.PUT, new TcpTransport());
        Origin other = new Origin(1, "0123abce");
        List<P2pMessage.Put> announcements = List.of(
                new P2pMessage.Put("r#layers.3", HEAD),
                new P2pMessage.Put("r#layers.1", new TensorHead("bool", HEAD.shape(), HEAD.origin())),
                new P2pMessage.Put("r#layers.1", new TensorHead("uint8", List.of(100L, 10L), HEAD.origin())),
                new P2pMessage.Put("r#layers.1", new TensorHead("uint8", HEAD.shape(), Optional.of(other))),
                new P2pMessage.Put("r#layers.1", new TensorHead("uint8", HEAD.shape(), Optional.empty())));
        try (Arena arena = Arena.ofShared()) {
            MemorySegment bytes = arena.allocate(1000).fill((byte) 7);
            P2pMessage.Checksum checksum = TensorChecksum.of("r#layers.1", HEAD, new TensorBytes.Host(bytes));
            for (int i = 0; i < announcements.size(); i++) {
                P2pMessage.Put put = announcements.get(i);
                PeerAddress from = new PeerAddress(HOST, 1 + i);
                boolean open = put(
                        taker,
                        from,
                        new P2pMessage.Put(put.tensorId(), put.head().withChecksum(checksum)),
                        bytes);
                assertThat(open).as("connection after %s", put).isFalse();
                assertCorrupt(taker, from, put.tensorId());
            }
            PeerAddress from = new PeerAddress(HOST, 100);
            assertThat(put(taker, from, new P2pMessage.Put("r#layers.1", HEAD.withChecksum(checksum)), bytes))
                    .isTrue();
            try (Received tensor = taker.receive(from, "r#layers.1", SOON)) {
                assertThat(tensor.head().origin()).isEqualTo(HEAD.origin());
            }
        }
        assertThat(taker.stats().get(Count.CORRUPT)).isEqualTo(announcements.size());
    }

    @Test
    void aTensorOfAPeerWithoutChecksumsIsTakenAndCounted() throws Exception {
        P2pEndpoint taker = endpoint(SendType.PUT, new TcpTransport());
        PeerAddress from = new PeerAddress(HOST, 1);
        try (Arena arena = Arena.ofShared()) {
            MemorySegment bytes = arena.allocate(1000).fill((byte) 7);
            TensorHead head = new TensorHead("uint8", HEAD.shape(), Optional.empty());
            assertThat(put(taker, from, new P2pMessage.Put("r#layer", head), bytes))
                    .isTrue();
        }
        try (Received tensor = taker.receive(from, "r#layer", SOON)) {
            assertThat(tensor.data().host().toArray(ValueLayout.JAVA_BYTE)).containsOnly(7);
        }
        assertThat(taker.stats().get(Count.UNCHECKED_TENSORS)).isEqualTo(1);
    }

    /** Puts a tensor by messages of its own; whether the connection goes on afterwards. */
    private static boolean put(P2pEndpoint taker, PeerAddress from, P2pMessage.Put message, MemorySegment bytes)
            throws Exception {
        long before = taker.stats().get(Count.CORRUPT) + taker.stats().get(Count.RECEIVED_TENSORS);
        try (PeerChannel peer = new ZeroMqPeerChannel();
                TcpTransport transport = new TcpTransport();
                PeerChannel.Call call = peer.call(HOST, taker.address().port(), from.toString(), SOON, () -> {});
                WireTransport.Offer offer = transport.offer(HOST)) {
            call.tell(List.of(new P2pMessage.New(offer.id()).encode()), SOON);
            try (Wire wire = offer.accept(SOON)) {
                List<byte[]> answer = call.ask(List.of(message.encode()), SOON);
                assertThat(PutReply.decode(answer.getFirst())).isEqualTo(PutReply.TAKEN);
                wire.send(bytes, SOON);
                until(() -> taker.stats().get(Count.CORRUPT) + taker.stats().get(Count.RECEIVED_TENSORS) > before);
                if (taker.stats().get(Count.RECEIVED_TENSORS) == 0) {
                    until(() -> !call.isOpen());
                }
                return call.isOpen();
            }
        }
    }

    /** A TCP transport with wires that flip a bit of received data, as long as that is wanted. */
    private record Flipping(TcpTransport tcp, AtomicBoolean flips) implements WireTransport {
        Flipping(AtomicBoolean flips) {
            this(new TcpTransport(), flips);
        }

        private Wire flipping(Wire wire) {
            return new Wire() {
                @Override
                public void send(TensorBytes bytes, Duration timeout) throws PipeException {
                    wire.send(bytes, timeout);
                }

                @Override
                public void receive(TensorBytes into, Duration timeout) throws PipeException {
                    wire.receive(into, timeout);
                    if (flips.get()) {
                        long last = into.byteSize() - 1;
                        MemorySegment bytes = into.host();
                        bytes.set(ValueLayout.JAVA_BYTE, last, (byte) (bytes.get(ValueLayout.JAVA_BYTE, last) ^ 1));
                    }
                }

                @Override
                public void close() {
                    wire.close();
                }
            };
        }

        @Override
        public String name() {
            return tcp.name();
        }

        @Override
        public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
            return flipping(tcp.meet(host, port, rank, timeout));
        }

        @Override
        public Offer offer(String host) throws PipeException {
            Offer offer = tcp.offer(host);
            return new Offer() {
                @Override
                public byte[] id() {
                    return offer.id();
                }

                @Override
                public Wire accept(Duration timeout) throws PipeException {
                    return flipping(offer.accept(timeout));
                }

                @Override
                public void close() {
                    offer.close();
                }
            };
        }

        @Override
        public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
            return flipping(tcp.join(id, host, timeout));
        }

        @Override
        public void close() {
            tcp.close();
        }
    }
}
