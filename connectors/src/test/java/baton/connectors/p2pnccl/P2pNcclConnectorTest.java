package baton.connectors.p2pnccl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvFence;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.p2p.P2pRequestId;
import baton.messages.p2p.Registration;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.memory.MemoryTransport;
import baton.pipe.p2p.P2pEndpoint;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.PoolMemory;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.RefusingMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Two engines without models; control messages over real sockets, bytes through memory. */
@Timeout(300)
class P2pNcclConnectorTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final KvLayout MODEL = new KvLayout(3, 2, 4, 4, DType.F32);

    private final MemoryTransport wires = new MemoryTransport(RefusingMemory::is);
    private final List<AutoCloseable> open = new ArrayList<>();
    private int ids;
    private boolean encryptsWires;

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : open.reversed()) {
            each.close();
        }
    }

    private final class Side {
        private final PeerAddress address;
        private final FakeEngine engine;

        private Side(int ranks, int blockSize, KvTransferConfig.Builder config) throws IOException {
            this(ranks, blockSize, config, PoolMemory.HOST);
        }

        private Side(int ranks, int blockSize, KvTransferConfig.Builder config, PoolMemory pools) {
            this(
                    connector(),
                    context(
                            pools == PoolMemory.HOST
                                    ? config.build()
                                    : config.bufferDevice("cuda")
                                            .extra("transport", "nccl")
                                            .build(),
                            ranks,
                            blockSize),
                    pools);
        }

        private Side(P2pNcclConnector connector, ConnectorContext context) {
            this(connector, context, PoolMemory.HOST);
        }

        private Side(P2pNcclConnector connector, ConnectorContext context, PoolMemory pools) {
            address = new PeerAddress(HOST, context.config().port());
            engine = new FakeEngine(connector, context, 64, pools);
            open.add(engine);
        }

        private Side(KvRole role) throws IOException {
            this(1, MODEL.blockSize(), config(role));
        }
    }

    private P2pNcclConnector connector() {
        return new P2pNcclConnector(runtime(ZeroMqPeerChannel::new));
    }

    private ConnectorRuntime runtime(Function<PeerAccess, PeerChannel> channels) {
        return new SystemRuntime() {
            @Override
            public WireTransport wires(String field, String name, PeerAccess access) {
                encryptsWires = access.sealing().isPresent();
                return wires;
            }

            @Override
            public PeerChannel peerChannel(PeerAccess access) {
                return channels.apply(access);
            }
        };
    }

    private static KvTransferConfig.Builder config(KvRole role) throws IOException {
        return KvTransferConfig.builder("P2pNcclConnector", role)
                .ip(HOST)
                .port(FreePorts.inARow(2))
                .extra("mem_pool_size_gb", 1)
                .extra("exchange_timeout", 60)
                .extra("transfer_timeout", 60)
                .extra("load_timeout", 60);
    }

    private static ConnectorContext context(KvTransferConfig config, int ranks, int blockSize) {
        return context(config, ranks, blockSize, () -> {});
    }

    private static ConnectorContext context(KvTransferConfig config, int ranks, int blockSize, Runnable wake) {
        KvLayout model = new KvLayout(MODEL.layers(), MODEL.kvHeads(), MODEL.headDim(), blockSize, MODEL.dtype());
        KvLayout share = new KvLayout(
                MODEL.layers(), Math.max(1, MODEL.kvHeads() / ranks), MODEL.headDim(), blockSize, MODEL.dtype());
        return new ConnectorContext(
                config,
                new ModelFingerprint("fake", "digest"),
                share,
                model,
                KvGroups.one(share.layers()),
                ranks,
                1,
                Ticker.system(),
                wake);
    }

    private String shared(Side prefill, Side decode) {
        return "cmpl-" + new P2pRequestId(prefill.address, decode.address, "%032x".formatted(ids++)).format() + "-0";
    }

    private static KvRequest request(String id, int first, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(first, length), MODEL.blockSize());
    }

    /** A device's tensors without room in the buffer are received into host memory. */
    @ParameterizedTest
    @CsvSource({
        "PUT_ASYNC, HOST, HOST, 10000",
        "PUT, HOST, HOST, 10000",
        "GET, HOST, HOST, 10000",
        "PUT_ASYNC, DEVICE, DEVICE, 2048",
        "PUT, DEVICE, HOST, 10000",
        "GET, HOST, DEVICE, 10000"
    })
    void aPromptsKvArrivesWhateverTheChunksAndBlockSizes(String sendType, PoolMemory from, PoolMemory to, long buffer)
            throws Exception {
        Side prefill = new Side(1, 4, config(KvRole.PRODUCER).extra("send_type", sendType), from);
        Side decode = new Side(
                1, 8, config(KvRole.CONSUMER).extra("send_type", sendType).bufferSize(buffer), to);
        for (int length : new int[] {2, 4, 5, 8, 9, 23}) {
            String id = shared(prefill, decode);
            Running there = prefill.engine.admit(request(id + "-11111111", 7, length), 0);
            int chunk = (length + 1) / 2;
            WorkerReport _ = prefill.engine.step(new Share(there, chunk));
            WorkerReport _ = prefill.engine.step(new Share(there, length - chunk));
            prefill.engine.finish(there);

            Running here = decode.engine.admit(request(id + "-22222222", 7, length), 0);
            assertThat(here.externalTokens()).isEqualTo(length - 1);
            assertThat(invalidAfterLoad(decode, here)).isZero();
            assertThat(decode.engine.holds(here, 0, length - 1)).isTrue();
            decode.engine.finish(here);
        }
    }

    /** Steps go on until all is counted, though no request is left. */
    @ParameterizedTest
    @ValueSource(strings = {"PUT_ASYNC", "GET"})
    void tensorsSentAfterAStepAreCounted(String sendType) throws Exception {
        Side prefill = new Side(1, 4, config(KvRole.PRODUCER).extra("send_type", sendType));
        Side decode = new Side(1, 4, config(KvRole.CONSUMER).extra("send_type", sendType));
        String id = shared(prefill, decode);
        WorkerReport report = prefill.engine.prefill(request(id, 7, 14));
        double sent = count(report, "baton:p2p_sent_tensors");
        Running here = decode.engine.admit(request(id, 7, 14), 0);
        assertThat(invalidAfterLoad(decode, here)).isZero();
        long deadline = System.nanoTime() + SOON.toNanos();
        while (prefill.engine.hasPendingWork()) {
            assertThat(System.nanoTime()).isLessThan(deadline);
            sent += count(prefill.engine.idleStep(), "baton:p2p_sent_tensors");
        }
        assertThat(sent).isEqualTo(MODEL.layers());
    }

    private static double count(WorkerReport report, String name) {
        return report.measurements().stream()
                .filter(each -> each.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    @Test
    void aTransportThatDoesNotReachTheDeviceIsNamed() throws Exception {
        KvTransferConfig config = config(KvRole.PRODUCER)
                .bufferDevice("cuda")
                .extra("transport", "nccl")
                .build();
        P2pNcclConnector connector = new P2pNcclConnector(runtime(ZeroMqPeerChannel::new), (settings, _) -> {
            P2pEndpoint endpoint =
                    P2pEndpoint.open(settings, new ZeroMqPeerChannel(), new MemoryTransport(), Ticker.system());
            open.add(endpoint);
            return endpoint;
        });
        assertThatThrownBy(() -> new Side(connector, context(config, 1, MODEL.blockSize()), PoolMemory.DEVICE))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("kv_buffer_device", "transport=nccl does not reach memory of refusing:0");
    }

    /** The memory is touched at the start, so that the first request does not wait for the system to find and clear it. */
    @Test
    void aRoleHasTheMemoryOfItsFirstTensorsBeforeTheFirstRequest() throws Exception {
        for (KvRole role : KvRole.values()) {
            List<P2pEndpoint> opened = new ArrayList<>();
            P2pNcclConnector connector = new P2pNcclConnector(runtime(ZeroMqPeerChannel::new), (settings, _) -> {
                opened.add(P2pEndpoint.open(settings, new ZeroMqPeerChannel(), wires, Ticker.system()));
                return opened.getLast();
            });
            Side side = new Side(connector, context(config(role).build(), 1, MODEL.blockSize()));
            assertThat(side.engine).isNotNull();
            assertThat(opened.getFirst().sendReserved() > 0)
                    .as("%s sends", role)
                    .isEqualTo(role != KvRole.CONSUMER);
            assertThat(opened.getFirst().bufferReserved() > 0)
                    .as("%s receives", role)
                    .isEqualTo(role != KvRole.PRODUCER);
        }
    }

    @Test
    void blocksThatTheDecodeInstanceHasAreNotWrittenAgain() throws Exception {
        Side prefill = new Side(KvRole.PRODUCER);
        Side decode = new Side(KvRole.CONSUMER);
        String id = shared(prefill, decode);
        WorkerReport _ = prefill.engine.prefill(request(id, 7, 14));

        Running here = decode.engine.admit(request(id, 7, 14), 8);
        assertThat(here.externalTokens()).isEqualTo(5);
        assertThat(invalidAfterLoad(decode, here)).isZero();
        assertThat(decode.engine.holds(here, 0, 13)).isTrue();

        // The whole prompt is here: nothing is loaded, and received tensors are dropped.
        String other = shared(prefill, decode);
        Running whole = decode.engine.admit(request(other, 7, 9), 8);
        assertThat(whole.externalTokens()).isZero();
    }

    @Test
    void ranksExchangeTensorsWithTheSameRank() throws Exception {
        Side prefill = new Side(2, 4, config(KvRole.PRODUCER));
        Side decode = new Side(2, 4, config(KvRole.CONSUMER));
        String id = shared(prefill, decode);
        WorkerReport _ = prefill.engine.prefill(request(id, 7, 14));
        Running here = decode.engine.admit(request(id, 7, 14), 0);
        assertThat(invalidAfterLoad(decode, here)).isZero();
        assertThat(decode.engine.holds(here, 0, 13)).isTrue();
    }

    /** If both instances have both roles, the request's id decides which one sends. */
    @Test
    void anInstanceOfBothRolesHasTheRoleOfTheRequestsId() throws Exception {
        Side one = new Side(KvRole.BOTH);
        Side two = new Side(KvRole.BOTH);
        for (List<Side> way : List.of(List.of(one, two), List.of(two, one))) {
            String id = shared(way.getFirst(), way.getLast());
            Running there = way.getFirst().engine.admit(request(id, 7, 14), 0);
            assertThat(there.externalTokens()).isZero();
            WorkerReport _ = way.getFirst().engine.step(new Share(there, 14));
            way.getFirst().engine.finish(there);
            Running here = way.getLast().engine.admit(request(id, 7, 14), 0);
            assertThat(invalidAfterLoad(way.getLast(), here)).isZero();
            assertThat(way.getLast().engine.holds(here, 0, 13)).isTrue();
        }
    }

    @Test
    void anotherNumberOfRanksIsRefused() throws Exception {
        Side prefill = new Side(2, 4, config(KvRole.PRODUCER));
        Side decode = new Side(KvRole.CONSUMER);
        String id = shared(prefill, decode);
        WorkerReport _ = prefill.engine.prefill(request(id, 7, 14));
        Running here = decode.engine.admit(request(id, 7, 14), 0);
        assertThat(failure(decode, here)).isEqualTo("tensor_parallel_size");
    }

    @Test
    void anotherPromptUnderTheSameIdIsRefused() throws Exception {
        Side prefill = new Side(KvRole.PRODUCER);
        Side decode = new Side(KvRole.CONSUMER);
        String id = shared(prefill, decode);
        WorkerReport _ = prefill.engine.prefill(request(id, 7, 14));
        Running here = decode.engine.admit(request(id, 8, 14), 0);
        assertThat(failure(decode, here)).isEqualTo("digest");
    }

    /** Instances with a secret always send the origin of their tensors. */
    @Test
    void withASecretATensorWithoutOriginIsRefused(@TempDir Path directory) throws Exception {
        Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        Side decode = new Side(1, 4, config(KvRole.CONSUMER).extra("kv_auth_secret_file", file));
        KvTransferConfig config = config(KvRole.PRODUCER)
                .extra("kv_auth_secret_file", file)
                .bufferSize(1 << 20)
                .build();
        P2pNcclSettings settings = P2pNcclSettings.of(config, Ticker.system());
        TensorHead head = new TensorHead("float32", List.of(2L, 10L, 2L, 4L), Optional.empty());
        try (P2pEndpoint sender = P2pEndpoint.open(
                settings.endpoint(config, 0), new ZeroMqPeerChannel(settings.access()), wires, Ticker.system())) {
            P2pRequestId id = new P2pRequestId(sender.address(), decode.address, "%032x".formatted(78));
            KvRequest request = request("chatcmpl-" + id.format() + "-12345678", 7, 10);
            for (String layer : decode.engine.cache().layerNames()) {
                sender.send(decode.address, "chatcmpl-" + id.format() + "#" + layer, head, data -> KvFence.PASSED);
            }
            assertThat(failure(decode, decode.engine.admit(request, 0))).isEqualTo("digest");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"off", "required"})
    void controlConnectionsAreSealedAndWiresIfRequired(String encryption, @TempDir Path directory) throws Exception {
        Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        Side decode = new Side(
                1, 4, config(KvRole.CONSUMER).extra("kv_auth_secret_file", file).extra("kv_encryption", encryption));
        assertThat(encryptsWires).isEqualTo(encryption.equals("required"));
        try (Socket stranger = new Socket(InetAddress.getLoopbackAddress(), decode.address.port())) {
            stranger.setSoTimeout((int) SOON.toMillis());
            byte[] first = stranger.getInputStream().readNBytes(6);
            assertThat(new String(first, StandardCharsets.ISO_8859_1)).isEqualTo("baton-");
        }
    }

    @Test
    void aMissingOrSilentPeerFailsTheLoad() throws Exception {
        Side decode = new Side(1, 4, config(KvRole.CONSUMER).extra("load_timeout", 0.2));
        Side silent = new Side(KvRole.PRODUCER);
        assertThat(failure(decode, decode.engine.admit(request(shared(silent, decode), 7, 14), 0)))
                .isEqualTo("deadline");
        String gone = shared(silent, decode).replace(":" + silent.address.port(), ":" + FreePorts.inARow(2));
        assertThat(failure(decode, decode.engine.admit(request(gone, 7, 14), 0)))
                .isEqualTo("peer_gone");
    }

    /** Tokens that were not received are never reported as received, whatever is thrown on the way. */
    @Test
    void aLoadThatThrowsFails() throws Exception {
        Side decode = new Side(
                new P2pNcclConnector(runtime(access -> new NoCalls(new ZeroMqPeerChannel(access)))),
                context(config(KvRole.CONSUMER).build(), 1, 4));
        Side prefill = new Side(KvRole.PRODUCER);
        Running here = decode.engine.admit(request(shared(prefill, decode), 7, 14), 0);
        List<WorkerReport> reports = loaded(decode, here);
        assertThat(reports.getLast().invalidBlocks()).hasSize(4);
        assertThat(reports.getLast().measurements())
                .anyMatch(each -> "internal".equals(each.labels().get("cause")));
    }

    /** A channel in a process that has run out of something. */
    private record NoCalls(PeerChannel channel) implements PeerChannel {
        @Override
        public SideChannel.Listener listen(String host, int port, Reception reception) throws MessageException {
            return channel.listen(host, port, reception);
        }

        @Override
        public Call call(
                String host,
                int port,
                String identity,
                Duration timeout,
                Consumer<List<byte[]>> unasked,
                Runnable whenEnded) {
            throw new OutOfMemoryError("no memory for a call of " + host + ":" + port);
        }

        @Override
        public void close() {
            channel.close();
        }
    }

    @Test
    void theEngineIsWokenWhenALoadIsOver() throws Exception {
        CountDownLatch woken = new CountDownLatch(1);
        Side decode = new Side(connector(), context(config(KvRole.CONSUMER).build(), 1, 4, woken::countDown));
        Side prefill = new Side(KvRole.PRODUCER);
        String id = shared(prefill, decode);
        Running here = decode.engine.admit(request(id, 7, 14), 0);
        assertThat(decode.engine.idleStep().received()).isEmpty();
        WorkerReport _ = prefill.engine.prefill(request(id, 7, 14));
        assertThat(woken.await(SOON.toSeconds(), TimeUnit.SECONDS)).isTrue();
        assertThat(decode.engine.idleStep().received()).containsExactly(id);
        assertThat(decode.engine.holds(here, 0, 13)).isTrue();
    }

    /** vLLM's messages have neither a digest nor the number of ranks; its earlier shape has no blocks. */
    @Test
    void tensorsWithoutOriginAreAccepted() throws Exception {
        Side decode = new Side(1, 4, config(KvRole.CONSUMER));
        PeerChannel channel = new ZeroMqPeerChannel();
        open.add(channel);
        PeerAddress self = new PeerAddress(
                HOST, channel.listen(HOST, 0, caller -> frames -> {}).port());
        String id = "chatcmpl-" + new P2pRequestId(self, decode.address, "%032x".formatted(77)).format();
        KvRequest request = request(id + "-12345678", 7, 10);
        PeerChannel.Call call = channel.call(HOST, decode.address.port(), self.toString(), SOON, () -> {});
        try (WireTransport.Offer offer = wires.offer(HOST);
                Arena arena = Arena.ofShared()) {
            call.tell(List.of(new P2pMessage.New(offer.id()).encode()), SOON);
            Wire wire = offer.accept(SOON);
            int[] prompt = request.tokens(0, 10);
            for (int layer = 0; layer < 3; layer++) {
                byte[] packed = FakeEngine.packedLayer(MODEL, prompt, 10, layer);
                byte[] split = new byte[packed.length];
                // From [tokens, heads, K|V] to [2, tokens, heads, ...].
                int vector = 4 * Float.BYTES;
                for (int entry = 0; entry < 10 * 2; entry++) {
                    System.arraycopy(packed, 2 * entry * vector, split, entry * vector, vector);
                    System.arraycopy(packed, (2 * entry + 1) * vector, split, (20 + entry) * vector, vector);
                }
                TensorHead head = new TensorHead("float32", List.of(2L, 10L, 2L, 4L), Optional.empty());
                String name = id + "#" + decode.engine.cache().layerNames().get(layer);
                assertThat(call.ask(List.of(new P2pMessage.Put(name, head).encode()), SOON))
                        .containsExactly(new byte[] {'0'});
                wire.send(arena.allocateFrom(java.lang.foreign.ValueLayout.JAVA_BYTE, split), SOON);
            }
            Running here = decode.engine.admit(request, 0);
            WorkerReport report = loaded(decode, here).getLast();
            assertThat(report.invalidBlocks()).isEmpty();
            assertThat(report.unverified()).containsExactly(request.id());
            assertThat(decode.engine.holds(here, 0, 9)).isTrue();
        }
    }

    @Test
    void anAbortedLoadEndsAtOnceAndItsBlocksAreFreeThen() throws Exception {
        Side prefill = new Side(KvRole.PRODUCER);
        Side decode = new Side(KvRole.CONSUMER);
        Running here = decode.engine.admit(request(shared(prefill, decode), 7, 14), 0);
        WorkerReport _ = decode.engine.idleStep();
        assertThat(decode.engine.end(here, RequestEnd.ABORTED)).isEmpty();
        long end = System.nanoTime() + SOON.toNanos();
        while (decode.engine.usedBlocks() > 0 && System.nanoTime() < end) {
            WorkerReport _ = decode.engine.idleStep();
        }
        assertThat(decode.engine.usedBlocks()).isZero();
    }

    /** A save that its peer refuses does not affect other saves of the same step. */
    @Test
    void aRefusedSaveDoesNotAffectOtherSavesOfTheSameStep() throws Exception {
        List<P2pEndpoint> senders = new ArrayList<>();
        P2pNcclConnector watched = new P2pNcclConnector(new SystemRuntime(), (settings, _) -> {
            P2pEndpoint sender = P2pEndpoint.open(settings, new ZeroMqPeerChannel(), wires, Ticker.system());
            senders.add(sender);
            return sender;
        });
        Side prefill = new Side(watched, context(config(KvRole.PRODUCER).build(), 1, 4));
        Side decode = new Side(1, 4, config(KvRole.CONSUMER).extra("load_timeout", 10));
        String unwanted = shared(prefill, decode);
        Running aborted = decode.engine.admit(request(unwanted, 7, 14), 0);
        assertThat(decode.engine.end(aborted, RequestEnd.ABORTED)).isEmpty();
        long end = System.nanoTime() + SOON.toNanos();
        while (decode.engine.usedBlocks() > 0 && System.nanoTime() < end) {
            WorkerReport _ = decode.engine.idleStep();
        }

        String wanted = shared(prefill, decode);
        Share first = new Share(prefill.engine.admit(request(unwanted, 7, 14), 0), 14);
        Share second = new Share(prefill.engine.admit(request(wanted, 7, 14), 0), 14);
        // Each layer is sent, or refused, before the next one is there.
        prefill.engine.afterEachLayer(_ -> {
            while (senders.getFirst().sendUsed() > 0 && System.nanoTime() < end) {
                Thread.onSpinWait();
            }
        });
        assertThat(prefill.engine.step(first, second).measurements())
                .contains(Measurement.count("baton:kv_save_failures", 1, "cause", "given_up"));
        Running here = decode.engine.admit(request(wanted, 7, 14), 0);
        assertThat(invalidAfterLoad(decode, here)).isZero();
        assertThat(decode.engine.holds(here, 0, 13)).isTrue();
    }

    @Test
    void idsThatAreOrdinaryHostileOrOfLaterSequencesAreComputedHere() throws Exception {
        Side prefill = new Side(KvRole.PRODUCER);
        Side decode = new Side(KvRole.CONSUMER);
        String good = shared(prefill, decode);
        for (String id : List.of(
                "cmpl-1234-0-11111111",
                good + "-11111111-1",
                good.replace("prefill_addr_" + HOST, "prefill_addr_169.254.169.254"),
                good.replace("prefill_addr_" + HOST, "prefill_addr_evil.example"),
                "___prefill_addr_x")) {
            Running here = decode.engine.admit(request(id, 7, 14), 0);
            assertThat(here.externalTokens()).as(id).isZero();
            decode.engine.finish(here);
        }
    }

    /** Each counts; the log has a line of many. */
    @Test
    void idsWithPeersThatAreNotAllowedCountAsRefused() throws Exception {
        ConnectorContext context = context(config(KvRole.CONSUMER).build(), 1, 4);
        P2pNcclSettings settings = P2pNcclSettings.of(context.config(), context.ticker());
        P2pNcclScheduler scheduler = new P2pNcclScheduler(context, settings);
        PeerAddress stranger = new PeerAddress("evil.example", 1);
        for (int i = 0; i < 20; i++) {
            P2pRequestId id = new P2pRequestId(stranger, new PeerAddress(HOST, 2), "%032x".formatted(i));
            scheduler.onNewRequest(request("cmpl-" + id.format() + "-0", 7, 14));
        }
        assertThat(settings.access().takeRefused()).isEqualTo(20);
        assertThat(scheduler.takeMeasurements()).containsExactly(Measurement.count("baton:p2p_refused_peers", 20));
    }

    @Test
    void anIdWithoutPortsForAllRanksIsAnOrdinaryOne() throws Exception {
        Side prefill = new Side(2, 4, config(KvRole.PRODUCER));
        Side decode = new Side(2, 4, config(KvRole.CONSUMER));
        String id = shared(prefill, decode).replaceAll(":[0-9]+", ":65535");
        WorkerReport report = prefill.engine.prefill(request(id, 7, 14));
        assertThat(report.measurements()).noneMatch(each -> each.name().contains("fail"));
        assertThat(decode.engine.admit(request(id, 7, 14), 0).externalTokens()).isZero();
    }

    @Test
    void rankZeroRegistersWithTheProxyAgainAndAgain() throws Exception {
        BlockingQueue<Registration> heard = new LinkedBlockingQueue<>();
        BlockingQueue<String> identities = new LinkedBlockingQueue<>();
        PeerChannel proxy = new ZeroMqPeerChannel();
        open.add(proxy);
        int port = proxy.listen(HOST, 0, caller -> {
                    identities.add(caller.identity());
                    return frames -> heard.add(Registration.decode(frames.getFirst()));
                })
                .port();
        Side prefill = new Side(
                1,
                4,
                config(KvRole.PRODUCER)
                        .extra("proxy_ip", HOST)
                        .extra("proxy_port", Integer.toString(port))
                        .extra("http_port", "20001"));
        Registration wanted =
                new Registration(Registration.Kind.PREFILL, new PeerAddress(HOST, 20_001), prefill.address);
        assertThat(heard.poll(60, TimeUnit.SECONDS)).isEqualTo(wanted);
        assertThat(heard.poll(60, TimeUnit.SECONDS)).isEqualTo(wanted);
        assertThat(identities.take()).isEqualTo(prefill.address.toString());
    }

    @Test
    void settingsThatCannotWorkAreNamed() throws Exception {
        assertRefused(config(KvRole.PRODUCER).extra("send_type", "PUSH"), "send_type", "PUT_ASYNC");
        assertRefused(config(KvRole.PRODUCER).extra("allowed_peers", "10.0.0.1"), "allowed_peers", "array");
        assertRefused(config(KvRole.PRODUCER).extra("allowed_peers", List.of("a b")), "allowed_peers", "a b");
        assertRefused(config(KvRole.PRODUCER).extra("load_timeout", 0), "load_timeout");
        assertRefused(config(KvRole.PRODUCER).extra("mem_pool_size_gb", -1), "mem_pool_size_gb");
        assertRefused(
                config(KvRole.PRODUCER).extra("proxy_ip", HOST).extra("proxy_port", 30_001), "http_port", "missing");
        assertRefused(
                config(KvRole.PRODUCER).extra("proxy_ip", HOST).extra("http_port", 20_001),
                "proxy_port",
                "missing",
                HOST);
        assertRefused(config(KvRole.PRODUCER).ip("not an address"), "kv_ip");
        assertRefused(config(KvRole.PRODUCER).ip("0.0.0.0"), "kv_ip", "at which peers find this instance");
        assertRefused(
                config(KvRole.PRODUCER).extra("transport", "gloo"), "transport: is gloo", "--kv-allow-unauthenticated");
        ConnectorContext stages = new ConnectorContext(
                config(KvRole.PRODUCER).build(),
                new ModelFingerprint("fake", "digest"),
                MODEL,
                MODEL,
                1,
                2,
                Ticker.system());
        assertThatThrownBy(() -> connector().scheduler(stages))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("pipeline_parallel_size");
        assertThatThrownBy(() -> connector()
                        .scheduler(context(config(KvRole.PRODUCER).port(0).build(), 2, 4)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_port");
        try (ServerSocket taken = new ServerSocket(0, 1, InetAddress.ofLiteral(HOST))) {
            KvTransferConfig config =
                    config(KvRole.PRODUCER).port(taken.getLocalPort()).build();
            assertThatThrownBy(() -> connector().worker(context(config, 1, 4), Rank.FIRST))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContainingAll("kv_port", Integer.toString(taken.getLocalPort()));
        }
    }

    private void assertRefused(KvTransferConfig.Builder config, String... parts) {
        assertThatThrownBy(() -> connector().scheduler(context(config.build(), 1, 4)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(parts);
    }

    /** Steps until the load is over; the number of its blocks that are not valid. */
    private static int invalidAfterLoad(Side side, Running running) {
        return loaded(side, running).stream()
                .mapToInt(report -> report.invalidBlocks().size())
                .sum();
    }

    private static String failure(Side side, Running running) {
        return loaded(side, running).stream()
                .flatMap(report -> report.measurements().stream())
                .filter(each -> each.name().equals("baton:kv_load_failures"))
                .flatMap(each -> Stream.ofNullable(each.labels().get("cause")))
                .findFirst()
                .orElse("none");
    }

    private static List<WorkerReport> loaded(Side side, Running running) {
        List<WorkerReport> reports = new ArrayList<>();
        long end = System.nanoTime() + SOON.toNanos();
        while (running.isLoading() && System.nanoTime() < end) {
            reports.add(side.engine.idleStep());
        }
        assertThat(running.isLoading()).isFalse();
        return reports;
    }
}
