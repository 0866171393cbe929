package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.SystemRuntime;
import baton.connectors.onesided.Incarnation;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.SignedProof;
import baton.connectors.onesided.TransferMode;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.PromptDigest;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.messages.PeerAddress;
import baton.messages.SideChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletionException;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.node.ObjectNode;

/** Attacks of a client that can send requests and reach the ports, but is no peer. */
@Timeout(300)
class HostileClientTest {
    private static final VllmRank VLLM =
            new VllmRank(new KvLayout(1, 1, 4, 4, DType.F32), 1, Optional.empty(), Optional.empty());
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final int LENGTH = 40;
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");

    @TempDir
    private Path directory;

    private final List<Measurement> measured = new ArrayList<>();

    /** How an instance knows its peers. */
    enum Guard {
        SECRET,
        ALLOWED_PEERS,
        /** All of this machine are peers. */
        NONE
    }

    private KvTransferConfig config(String id, Guard guard) {
        return config(id, guard, "secret");
    }

    private KvTransferConfig config(String id, Guard guard, String secret) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .engineId(id)
                .extra("side_channel_port", 0)
                .extra("side_channel_host", "127.0.0.1")
                .extra("transport", "tcp");
        return switch (guard) {
            case SECRET ->
                config.extra("kv_auth_secret_file", secretFile(secret)).build();
            case ALLOWED_PEERS ->
                config.extra("allowed_peers", List.of("192.0.2.1")).build();
            case NONE -> config.build();
        };
    }

    private Path secretFile(String name) {
        try {
            return Files.writeString(directory.resolve(name), name.repeat(8));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static FakeEngine engine(KvTransferConfig config) {
        KvLayout layout = new KvLayout(3, 2, 16, 16, DType.F32);
        return new FakeEngine(
                new NixlConnector(),
                new ConnectorContext(config, new ModelFingerprint("fake", "00"), layout, layout, 1, 1, Ticker.system()),
                64);
    }

    private void until(BooleanSupplier condition, FakeEngine... engines) {
        long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).isLessThan(deadline);
            for (FakeEngine engine : engines) {
                measured.addAll(engine.idleStep().measurements());
                measured.addAll(engine.scheduler().takeMeasurements());
            }
            Thread.onSpinWait();
        }
    }

    private double measured(FakeEngine engine, String name) {
        measured.addAll(engine.idleStep().measurements());
        measured.addAll(engine.scheduler().takeMeasurements());
        return measured.stream()
                .filter(each -> each.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    /** The reference to a prompt that was computed there. */
    private static JsonFields prefill(FakeEngine prefill, String id, int[] prompt) {
        Running running = prefill.admit(new FakeKvRequest(id, prompt, 16).withKvTransferParams(KEEP), 0);
        prefill.step(new Share(running, prompt.length));
        JsonFields params = prefill.end(running, RequestEnd.LENGTH).orElseThrow();
        prefill.idleStep();
        return params;
    }

    /** Asks vLLM's question, as any program can, and returns the answer. */
    private static Optional<RankInfo> told(JsonFields params) {
        try (SideChannel channel = new ZeroMqSideChannel()) {
            List<byte[]> answer = channel.ask(
                            params.string("remote_host").orElseThrow(),
                            params.integerAtLeast("remote_port", 1).orElseThrow(),
                            List.of(NixlHandshake.question(Rank.FIRST)),
                            SOON)
                    .join();
            return Optional.of(NixlHandshake.read(answer.getFirst(), Rank.FIRST, Optional.empty(), VLLM));
        } catch (InvalidFieldException | CompletionException e) {
            return Optional.empty();
        }
    }

    /** Reads 192 KiB over TCP with the side channel's answer, or with an insider's. */
    private static boolean isReadBy(RankInfo owner, EmbeddedAgent.Settings settings) throws TransferException {
        long bytes = Math.min(192 << 10, owner.blocks() * owner.layout().blockBytes());
        try (Arena arena = Arena.ofShared();
                TransferAgent stranger =
                        EmbeddedAgent.open("stranger", settings.withTransport(EmbeddedAgent.Transport.TCP))) {
            MemorySegment own = arena.allocate(bytes, 64);
            stranger.register(new Region(own, Optional.empty()));
            TransferAgent.Peer peer = stranger.connect(owner.agent(), SOON);
            Transfer read = stranger.start(
                    TransferAgent.Operation.READ,
                    peer,
                    List.of(new Range(own.address(), owner.regions().addresses()[0], bytes)),
                    Optional.empty(),
                    SOON);
            long deadline = System.nanoTime() + 2 * SOON.toNanos();
            while (read.state() instanceof Transfer.State.UnderWay) {
                assertThat(System.nanoTime()).as("in time").isLessThan(deadline);
                Thread.onSpinWait();
            }
            return read.state() instanceof Transfer.State.Done;
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"SECRET", "ALLOWED_PEERS"})
    void strangersGetNoHandshakeAndReadNothingOfThePool(Guard guard) throws Exception {
        KvTransferConfig config = config("p", guard);
        try (FakeEngine prefill = engine(config)) {
            JsonFields params = prefill(prefill, "p-1", FakeKvRequest.counting(1, LENGTH));
            Optional<RankInfo> told = told(params);
            boolean read = told.isPresent() && isReadBy(told.get(), EmbeddedAgent.Settings.at("127.0.0.1"));
            assertThat(read).isFalse();
            assertThat(told).isEmpty();
            // The stranger may see the end of the connection before it is counted.
            until(() -> measured(prefill, "baton:kv_refused_peers") > 0, prefill);
        }
    }

    /** Not even the metadata of the agent, should it leak, lets in an agent that does not know the secret. */
    @Test
    void aHandshakesAnswerIsOfNoUseWithoutTheSecret() throws Exception {
        KvTransferConfig config = config("p", Guard.SECRET);
        NixlSettings settings = NixlSettings.of(config.extra(), Map.of());
        try (FakeEngine prefill = engine(config)) {
            JsonFields params = prefill(prefill, "p-1", FakeKvRequest.counting(1, LENGTH));
            PeerAddress at = new PeerAddress(
                    "127.0.0.1", params.integerAtLeast("remote_port", 1).orElseThrow());
            RankInfo info = new HandshakeClient(new SystemRuntime(), settings.access(), VLLM)
                    .ask(at, Rank.FIRST, SOON)
                    .info();
            assertThat(isReadBy(
                            info, EmbeddedAgent.Settings.at("127.0.0.1").withAccess(Optional.of(settings.access()))))
                    .isTrue();
            assertThatThrownBy(() -> isReadBy(info, EmbeddedAgent.Settings.at("127.0.0.1")))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining("secret");
            NixlSettings wrong =
                    NixlSettings.of(config("x", Guard.SECRET, "another1").extra(), Map.of());
            assertThatThrownBy(() -> isReadBy(
                            info, EmbeddedAgent.Settings.at("127.0.0.1").withAccess(Optional.of(wrong.access()))))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining("secret");
            // The stranger may see the end of the connection before it is counted.
            until(() -> measured(prefill, "baton:kv_refused_peers") == 2, prefill);
        }
    }

    /**
     * Blocks of the attacker's prompt, signed as those of another prompt: loaded blocks are shared with every request that has the other
     * prompt.
     */
    @Test
    void onlyTheOwnerSignsWhichPromptBlocksAreOf() {
        int[] own = FakeKvRequest.counting(70_000, LENGTH);
        int[] another = FakeKvRequest.counting(1, LENGTH);
        try (FakeEngine prefill = engine(config("p", Guard.SECRET));
                FakeEngine decode = engine(config("d", Guard.SECRET))) {
            JsonFields params = prefill(prefill, "p-1", own);
            RemoteBlocks reference = RemoteBlocks.read(params, TransferMode.PULL, "d-1");
            byte[] key = told(params)
                    .flatMap(RankInfo::incarnation)
                    .map(Incarnation::key)
                    .orElse(new byte[32]);
            SignedProof proof = reference.proof().orElseThrow();
            RemoteBlocks forged = reference.proven(
                    proof.epoch(),
                    proof.model(),
                    proof.generations(),
                    PromptDigest.of(
                            new ModelFingerprint("fake", "00"),
                            Optional.empty(),
                            Optional.empty(),
                            Arrays.copyOf(another, LENGTH)),
                    key);
            assertNothingIsLoaded(decode, prefill, forged.toParams(0, 1), another);
            assertThat(measured).anySatisfy(each -> assertThat(each.labels()).containsEntry("cause", "forged"));
            // The owner's own is taken, for its own prompt only.
            assertNothingIsLoaded(decode, prefill, params, another);
            Running loaded = decode.admit(
                    new FakeKvRequest("d-2", own, 16).withKvTransferParams(prefill(prefill, "p-2", own)), 0);
            until(() -> !loaded.isLoading(), decode, prefill);
            assertThat(loaded.computedTokens()).isEqualTo(LENGTH - 1);
        }
    }

    private void assertNothingIsLoaded(FakeEngine decode, FakeEngine owner, JsonFields params, int[] prompt) {
        Running running =
                decode.admit(new FakeKvRequest("d-" + measured.size(), prompt, 16).withKvTransferParams(params), 0);
        until(() -> !running.isLoading(), decode, owner);
        assertThat(running.computedTokens()).isZero();
        decode.end(running, RequestEnd.ABORTED);
    }

    /** An instance of the attacker's, which names the key of its references itself. */
    @Test
    void aKeyFromTheClientsOwnSideChannelIsNotTrusted() throws Exception {
        int[] prompt = FakeKvRequest.counting(1, LENGTH);
        KvTransferConfig.Builder attacker = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .engineId("attacker")
                .extra("side_channel_port", 0)
                .extra("side_channel_host", "127.0.0.2");
        try (FakeEngine evil = engine(attacker.build());
                FakeEngine secret = engine(config("d", Guard.SECRET));
                FakeEngine strict = engine(config("e", Guard.ALLOWED_PEERS));
                FakeEngine open = engine(config("f", Guard.NONE))) {
            // The parameters refused below are valid elsewhere.
            Running loaded = open.admit(
                    new FakeKvRequest("d-0", prompt, 16).withKvTransferParams(prefill(evil, "p-0", prompt)), 0);
            until(() -> !loaded.isLoading(), open, evil);
            assertThat(loaded.computedTokens()).isEqualTo(LENGTH - 1);
            assertNothingIsLoaded(secret, evil, prefill(evil, "p-1", prompt), prompt);
            assertNothingIsLoaded(strict, evil, prefill(evil, "p-2", prompt), prompt);
            assertThat(measured(strict, "baton:kv_handoff_rejected")).isEqualTo(1);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"127.0.0.2", "localhost", "localhost.", "0.0.0.0", "metadata.internal"})
    void hostsThatAreNotAllowedAreNeitherConnectedToNorLookedUp(String host) throws Exception {
        try (ServerSocketChannel trap = ServerSocketChannel.open();
                Selector connections = Selector.open();
                FakeEngine decode = engine(config("d", Guard.ALLOWED_PEERS))) {
            trap.bind(new InetSocketAddress("0.0.0.0", 0));
            trap.configureBlocking(false);
            int port = ((InetSocketAddress) trap.getLocalAddress()).getPort();
            ObjectNode params = KEEP.toJson().objectNode();
            params.put("do_remote_prefill", true)
                    .put("remote_engine_id", "p")
                    .put("remote_request_id", "p-1")
                    .put("remote_host", host)
                    .put("remote_port", port);
            JsonFields atOnce = JsonFields.of("kv_transfer_params", params);
            params.putArray("remote_block_ids").addArray().add(1).add(2).add(3);
            JsonFields named = JsonFields.of("kv_transfer_params", params);
            for (JsonFields each : Arrays.asList(atOnce, named)) {
                Running running = decode.admit(
                        new FakeKvRequest("d-" + each.names().size(), FakeKvRequest.counting(1, LENGTH), 16)
                                .withKvTransferParams(each),
                        0);
                assertThat(running.isLoading()).isFalse();
                decode.end(running, RequestEnd.ABORTED);
                decode.scheduler().onRefused("r-" + each.names().size(), each);
                decode.idleStep();
                decode.idleStep();
            }
            trap.register(connections, SelectionKey.OP_ACCEPT);
            assertThat(connections.select(50)).as("connections within 50 ms").isZero();
            assertThat(measured(decode, "baton:kv_handoff_rejected")).isEqualTo(2);
        }
    }

    /** A reference without a signature is not of a peer that knows the secret: it would not be answered. */
    @Test
    void whereThereIsASecretOwnersWithoutSignaturesAreNotConnectedTo() throws Exception {
        try (ServerSocketChannel trap = ServerSocketChannel.open();
                Selector connections = Selector.open();
                FakeEngine decode = engine(config("d", Guard.SECRET))) {
            trap.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
            trap.configureBlocking(false);
            ObjectNode params = KEEP.toJson().objectNode();
            params.put("do_remote_prefill", true)
                    .put("remote_engine_id", "p")
                    .put("remote_request_id", "p-1")
                    .put("remote_host", "127.0.0.1")
                    .put("remote_port", ((InetSocketAddress) trap.getLocalAddress()).getPort());
            params.putArray("remote_block_ids").addArray().add(1).add(2).add(3);
            JsonFields unsigned = JsonFields.of("kv_transfer_params", params);
            Running running = decode.admit(
                    new FakeKvRequest("d-1", FakeKvRequest.counting(1, LENGTH), 16).withKvTransferParams(unsigned), 0);
            assertThat(running.isLoading()).isFalse();
            decode.end(running, RequestEnd.ABORTED);
            decode.scheduler().onRefused("r-1", unsigned);
            decode.idleStep();
            decode.idleStep();
            trap.register(connections, SelectionKey.OP_ACCEPT);
            assertThat(connections.select(50)).as("connections within 50 ms").isZero();
            assertThat(measured(decode, "baton:kv_handoff_rejected")).isEqualTo(1);
        }
    }
}
