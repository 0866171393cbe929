package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.SystemRuntime;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Two engines with everything real between them: agents, side channels, threads, time. */
@Timeout(300)
class SystemRuntimeTest {
    private static final int HEADS = 2;
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");

    private static final Duration LEASE = Duration.ofMillis(200);

    private final List<Measurement> measured = new ArrayList<>();

    private static FakeEngine engine(String connector, String id, int tensorParallelSize, int blockSize) {
        KvTransferConfig config = config(connector, id);
        return engine(KvConnectors.find(config).orElseThrow(), config, tensorParallelSize, blockSize);
    }

    private static KvTransferConfig config(String connector, String id) {
        return builder(connector, id).build();
    }

    private static KvTransferConfig.Builder builder(String connector, String id) {
        return KvTransferConfig.builder(connector, KvRole.BOTH)
                .engineId(id)
                .extra("side_channel_port", 0)
                .extra("side_channel_host", "127.0.0.1")
                .extra("transfer_agent", "embedded");
    }

    private static FakeEngine engine(
            KvConnector connector, KvTransferConfig config, int tensorParallelSize, int blockSize) {
        return new FakeEngine(
                connector,
                new ConnectorContext(
                        config,
                        new ModelFingerprint("fake", "00"),
                        new KvLayout(3, HEADS / tensorParallelSize, 16, blockSize, DType.F32),
                        new KvLayout(3, HEADS, 16, blockSize, DType.F32),
                        tensorParallelSize,
                        1,
                        Ticker.system()),
                64);
    }

    private void until(BooleanSupplier condition, FakeEngine... engines) {
        long deadline = System.nanoTime() + Duration.ofMinutes(2).toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).as("time until " + condition).isLessThan(deadline);
            for (FakeEngine engine : engines) {
                WorkerReport report = engine.idleStep();
                measured.addAll(report.measurements());
                measured.addAll(engine.scheduler().takeMeasurements());
            }
            Thread.onSpinWait();
        }
    }

    @ParameterizedTest
    @CsvSource({
        "NixlConnector, 1, 16, 1, 16",
        "NixlConnector, 2, 16, 1, 16",
        "NixlConnector, 1, 16, 2, 32",
        "NixlPushConnector, 1, 16, 1, 16",
        "NixlPushConnector, 2, 16, 1, 32"
    })
    void theDecodePoolHasThePrefillPoolsBytes(
            String connector, int prefillSize, int prefillBlocks, int decodeSize, int decodeBlocks) {
        try (FakeEngine prefill = engine(connector, "p", prefillSize, prefillBlocks);
                FakeEngine decode = engine(connector, "d", decodeSize, decodeBlocks)) {
            for (int length : new int[] {1, 15, 16, 17, 33, 200, 201}) {
                int[] prompt = FakeKvRequest.counting(length * 1000, length);
                FakeKvRequest request =
                        new FakeKvRequest("p-" + length, prompt, prefillBlocks).withKvTransferParams(KEEP);
                Running first = prefill.admit(request, 0);
                prefill.step(new Share(first, length));
                JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
                prefill.idleStep();
                Running running = decode.admit(
                        new FakeKvRequest("d-" + length, prompt, decodeBlocks).withKvTransferParams(params), 0);
                until(() -> !running.isLoading(), decode, prefill);
                assertThat(running.computedTokens()).isEqualTo(length - 1);
                assertThat(decode.holds(running, 0, length - 1)).isTrue();
                decode.resume(running);
                decode.step(new Share(running, running.remainingTokens()));
                decode.end(running, RequestEnd.LENGTH);
                until(() -> decode.usedBlocks() == 0 && prefill.usedBlocks() == 0, decode, prefill);
            }
        }
        assertThat(measured).extracting(Measurement::name).doesNotContain("baton:kv_handoff_rejected");
    }

    @Test
    void leasesOfADeadReaderEnd() {
        try (FakeEngine prefill = engine("NixlConnector", "p", 1, 16)) {
            FakeKvRequest request = new FakeKvRequest("p-1", FakeKvRequest.counting(1, 40), 16);
            Running first = prefill.admit(request.withKvTransferParams(KEEP), 0);
            prefill.step(new Share(first, 40));
            JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
            prefill.idleStep();
            try (FakeEngine decode = engine("NixlConnector", "d", 1, 16)) {
                decode.scheduler()
                        .onNewRequest(new FakeKvRequest("d-1", FakeKvRequest.counting(1, 40), 16)
                                .withKvTransferParams(params));
                until(() -> !decode.idleStep().busy(), decode);
                measured.clear();
                // Seals, as these pools cannot be mapped.
                until(() -> !mappedOfPeers().isEmpty(), prefill);
                assertThat(mappedOfPeers()).allMatch(bytes -> bytes > 0);
                assertThat(prefill.usedBlocks()).isEqualTo(3);
            }
            until(() -> prefill.usedBlocks() == 0, prefill);
            until(() -> mappedOfPeers().getLast() == 0, prefill);
        }
        assertThat(measured).extracting(Measurement::name).contains("baton:kv_orphaned_leases");
    }

    private List<Double> mappedOfPeers() {
        return measured.stream()
                .filter(each -> each.name().equals("baton:kv_peer_memory_mapped_bytes"))
                .map(Measurement::value)
                .toList();
    }

    /** Prompts that are named, to be read, and such that are written while they are computed; in the middle of one a connection ends. */
    @ParameterizedTest
    @CsvSource({"true, false", "false, true", "true, true"})
    void afterAnyConnectionEndsTheNextPromptsArePulledAndPushed(boolean ofDecode, boolean ofPrefill)
            throws TransferException {
        DisconnectingRuntime prefillRuntime = new DisconnectingRuntime();
        DisconnectingRuntime decodeRuntime = new DisconnectingRuntime();
        int length = 40;
        int[] prompt = FakeKvRequest.counting(1, length);
        try (FakeEngine prefill = engine(new NixlConnector(prefillRuntime), config("NixlConnector", "p"), 1, 16);
                FakeEngine decode = engine(new NixlConnector(decodeRuntime), config("NixlConnector", "d"), 1, 16)) {
            for (int round = 0; round < 3; round++) {
                Running named = prefill.admit(request("n-" + round, prompt).withKvTransferParams(KEEP), 0);
                prefill.step(new Share(named, length));
                JsonFields params = prefill.end(named, RequestEnd.LENGTH).orElseThrow();
                prefill.idleStep();
                Running read = decode.admit(request("r-" + round, prompt).withKvTransferParams(params), 0);
                until(() -> !read.isLoading(), decode, prefill);
                assertThat(read.computedTokens()).as("round %d", round).isEqualTo(length - 1);
                assertThat(decode.holds(read, 0, length - 1)).isTrue();

                JsonFields owner = JsonFields.parse(
                        "kv_transfer_params",
                        "{\"do_remote_prefill\": true, \"remote_engine_id\": \"p\", \"remote_host\": \"127.0.0.1\", "
                                + "\"remote_request_id\": \"a proxy's\", \"tp_size\": 1, \"remote_port\": "
                                + params.value("remote_port").orElseThrow() + "}");
                Running written = decode.admit(
                        request("cmpl-" + round + "-0badcafe", prompt).withKvTransferParams(owner), 0);
                // It registers at once: the two have met.
                decode.idleStep();
                until(() -> prefill.idleStep().busy(), decode);
                Running first = prefill.admit(
                        request("cmpl-" + round + "-deadbeef", prompt).withKvTransferParams(KEEP), 0);
                prefill.step(new Share(first, 20));
                boolean broken = round == 1;
                if (broken && ofDecode) {
                    decodeRuntime.disconnect(prefillRuntime);
                }
                if (broken && ofPrefill) {
                    prefillRuntime.disconnect(decodeRuntime);
                }
                prefill.step(new Share(first, 20));
                prefill.end(first, RequestEnd.LENGTH);
                until(() -> !written.isLoading(), decode, prefill);
                assertThat(written.computedTokens())
                        .as("round %d", round)
                        .isEqualTo(broken && ofDecode ? 0 : length - 1);
                assertThat(decode.holds(written, 0, written.computedTokens())).isTrue();
                for (Running each : List.of(read, written)) {
                    decode.resume(each);
                    decode.step(new Share(each, each.remainingTokens()));
                    decode.end(each, RequestEnd.LENGTH);
                }
                // Sooner than leases end.
                until(() -> decode.usedBlocks() == 0 && prefill.usedBlocks() == 0, decode, prefill);
            }
        }
        assertThat(measured).extracting(Measurement::name).doesNotContain("baton:kv_handoff_rejected");
    }

    /** The failures of requests sent to both instances at once. */
    enum Order {
        PREFILL_NEVER_COMES,
        PREFILL_CANNOT_CONNECT
    }

    @ParameterizedTest
    @EnumSource(Order.class)
    void aPushThatThePrefillInstanceDoesNotAnswerFails(Order order) {
        int[] prompt = FakeKvRequest.counting(1, 40);
        NixlConnector ofPrefill = new NixlConnector(
                new SystemRuntime(),
                handshake -> order == Order.PREFILL_CANNOT_CONNECT
                        ? (peer, rank, timeout) -> handshake.ask(new PeerAddress(peer.host(), 1), rank, timeout)
                        : handshake);
        try (FakeEngine prefill = engine(ofPrefill, withLease("p"), 1, 16);
                FakeEngine decode = engine(new NixlConnector(), withLease("d"), 1, 16)) {
            JsonFields owner = prefill.scheduler().advertisedKvTransferParams().orElseThrow();
            Running running = decode.admit(request("cmpl-r-0-0badcafe", prompt).withKvTransferParams(owner), 0);
            FakeKvRequest asked = request("cmpl-r-0-deadbeef", prompt).withKvTransferParams(KEEP);
            if (order == Order.PREFILL_CANNOT_CONNECT) {
                Running first = prefill.admit(asked, 0);
                prefill.step(new Share(first, 40));
                prefill.end(first, RequestEnd.LENGTH);
            }
            until(() -> !running.isLoading(), decode, prefill);
            assertThat(running.computedTokens()).isZero();
            decode.end(running, RequestEnd.ABORTED);
            until(() -> decode.usedBlocks() == 0 && prefill.usedBlocks() == 0, decode, prefill);
        }
    }

    private static KvTransferConfig withLease(String id) {
        return builder("NixlConnector", id)
                .extra("kv_lease_duration", LEASE.toMillis() / 1000.0)
                .build();
    }

    private static FakeKvRequest request(String id, int[] prompt) {
        return new FakeKvRequest(id, prompt, 16);
    }

    /** The system's runtime, with connections that a test can end. */
    private static final class DisconnectingRuntime extends SystemRuntime {
        private final List<TransferAgent> agents = new ArrayList<>();

        /** Ends the connection that this side has opened. */
        void disconnect(DisconnectingRuntime other) throws TransferException {
            byte[] metadata = other.agents.getFirst().metadata();
            agents.getFirst().connect(metadata, Duration.ofSeconds(60)).close();
        }

        @Override
        public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access) {
            agents.add(super.transferAgent(extra, host, access));
            return agents.getLast();
        }
    }

    @Test
    void aHandshakeWithoutAListenerFails() {
        try (FakeEngine decode = engine("NixlConnector", "d", 1, 16)) {
            JsonFields params = JsonFields.parse(
                    "kv_transfer_params",
                    "{\"do_remote_prefill\": true, \"remote_engine_id\": \"p\", \"remote_request_id\": \"r\", \"remote_block_ids\": [[1, 2]], "
                            + "\"remote_host\": \"127.0.0.1\", \"remote_port\": 1}");
            Running running = decode.admit(
                    new FakeKvRequest("d-1", FakeKvRequest.counting(1, 20), 16).withKvTransferParams(params), 0);
            until(() -> !running.isLoading(), decode);
            assertThat(running.computedTokens()).isZero();
            decode.end(running, RequestEnd.ABORTED);
        }
    }
}
