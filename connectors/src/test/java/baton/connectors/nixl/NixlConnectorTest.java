package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.nixl.MemoryNet.MemoryRuntime;
import baton.connectors.onesided.Rejection;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.PoolMemory;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Two engines in one thread: the other has one's computed blocks, byte by byte, or does not use them and counts the reason. */
class NixlConnectorTest {
    private static final int BLOCK_SIZE = 4;
    private static final int HEADS = 2;
    private static final KvLayout LAYOUT = new KvLayout(3, HEADS, 4, BLOCK_SIZE, DType.F32);
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");

    private final VirtualTicker ticker = new VirtualTicker();
    private final MemoryNet net = new MemoryNet(ticker);
    private final List<Measurement> measured = new ArrayList<>();
    private MemoryRuntime prefillRuntime = net.runtime();
    private MemoryRuntime decodeRuntime = net.runtime();
    private FakeEngine prefill = engine(prefillRuntime, "p", Map.of());
    private FakeEngine decode = engine(decodeRuntime, "d", Map.of());

    @BeforeEach
    void start() {
        ticker.advance(Duration.ofSeconds(100));
    }

    @AfterEach
    void nothingIsLeft() {
        decode.close();
        prefill.close();
        assertThat(prefillRuntime.allocated()).isZero();
        assertThat(decodeRuntime.allocated()).isZero();
    }

    private FakeEngine engine(MemoryRuntime runtime, String id, Map<String, Object> extra) {
        return engine(runtime, id, extra, 1, BLOCK_SIZE);
    }

    /** An engine with a device's pool that the connector reaches directly. */
    private FakeEngine direct(MemoryRuntime runtime, String id) {
        return engine(runtime, id, Map.of(), 1, BLOCK_SIZE, PoolMemory.DEVICE);
    }

    private FakeEngine engine(
            MemoryRuntime runtime, String id, Map<String, Object> extra, int tensorParallelSize, int blockSize) {
        return engine(runtime, id, extra, tensorParallelSize, blockSize, PoolMemory.HOST);
    }

    private FakeEngine engine(
            MemoryRuntime runtime,
            String id,
            Map<String, Object> extra,
            int tensorParallelSize,
            int blockSize,
            PoolMemory pools) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .engineId(id)
                .bufferDevice("cuda")
                .extra("side_channel_port", 0);
        extra.forEach(config::extra);
        return new FakeEngine(
                new NixlConnector(runtime),
                new ConnectorContext(
                        config.build(),
                        new ModelFingerprint("fake", "00"),
                        new KvLayout(3, Math.max(1, HEADS / tensorParallelSize), 4, blockSize, DType.F32),
                        new KvLayout(3, HEADS, 4, blockSize, DType.F32),
                        tensorParallelSize,
                        1,
                        ticker),
                40 * BLOCK_SIZE / blockSize,
                pools);
    }

    private static FakeKvRequest request(String id, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, length), BLOCK_SIZE);
    }

    private JsonFields prefilled(String id, int length) {
        return prefilled(request(id, length));
    }

    private JsonFields prefilled(FakeKvRequest request) {
        Running running = prefill.admit(request.withKvTransferParams(KEEP), 0);
        prefill.step(new Share(running, request.promptLength()));
        JsonFields params = prefill.end(running, RequestEnd.LENGTH).orElseThrow();
        step(prefill);
        assertThat(running.isFreed()).isFalse();
        return params;
    }

    private WorkerReport step(FakeEngine engine) {
        WorkerReport report = engine.idleStep();
        measured.addAll(report.measurements());
        measured.addAll(engine.scheduler().takeMeasurements());
        return report;
    }

    /** Steps until the load is over. */
    private void load(Running running) {
        for (int i = 0; running.isLoading(); i++) {
            assertThat(i).as("steps until the load is over").isLessThan(100);
            step(decode);
        }
        decode.resume(running);
    }

    private double counted(String name) {
        return Measured.count(name, measured);
    }

    private List<String> rejections() {
        return Measured.rejections(measured);
    }

    /** The request continues from its blocks, and all its blocks are right then. */
    private void completes(Running running) {
        decode.step(new Share(running, running.remainingTokens()));
        assertThat(decode.holds(running, 0, running.request().promptLength())).isTrue();
        decode.end(running, RequestEnd.LENGTH);
    }

    private void allBlocksAreBack() {
        for (int i = 0; i < 3; i++) {
            step(decode);
            step(prefill);
        }
        assertThat(decode.usedBlocks()).isZero();
        assertThat(prefill.usedBlocks()).isZero();
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 4, 5, 8, 9, 31, 32, 33})
    void theDecodePoolGetsThePrefillPoolsBytes(int length) {
        FakeKvRequest request = request("p-1", length);
        Running first = prefill.admit(request.withKvTransferParams(KEEP), 0);
        prefill.step(new Share(first, length));
        JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
        step(prefill);

        Running running = decode.admit(request("d-1", length).withKvTransferParams(params), 0);
        assertThat(running.isLoading()).isEqualTo(length > 1);
        load(running);
        assertThat(running.computedTokens()).isEqualTo(length - 1);
        assertThat(decode.holds(running, 0, length - 1)).isTrue();
        if (length > 1) {
            for (int i = 0; i < running.blockTable().length; i++) {
                assertThat(decode.cache()
                                .block(running.blockTable()[i])
                                .mismatch(prefill.cache().block(first.blockTable()[i])))
                        .isEqualTo(-1);
            }
            assertThat(counted("vllm:nixl_bytes_transferred"))
                    .isEqualTo(running.blockTable().length * LAYOUT.blockBytes());
        }
        completes(running);
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void blocksOfACachedPrefixAreNotPulled() {
        JsonFields params = prefilled("p-1", 14);
        Running running = decode.admit(request("d-1", 14).withKvTransferParams(params), 8);
        load(running);
        assertThat(counted("vllm:nixl_bytes_transferred")).isEqualTo(2 * LAYOUT.blockBytes());
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aCachedPromptCompletesItsLeaseWithoutALoad() {
        JsonFields params = prefilled("p-1", 9);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 8);
        assertThat(running.isLoading()).isFalse();
        step(decode);
        step(prefill);
        assertThat(prefill.usedBlocks()).isZero();
        assertThat(counted("vllm:nixl_bytes_transferred")).isZero();
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aRequestThatEndsBeforeItIsScheduledCompletesItsLease() {
        JsonFields params = prefilled("p-1", 9);
        FakeKvRequest request = request("d-1", 9).withKvTransferParams(params);
        decode.scheduler().onNewRequest(request);
        decode.scheduler().onFinished(request, RequestEnd.ABORTED, new int[0]);
        assertThat(decode.scheduler().hasPendingWork()).isTrue();
        allBlocksAreBack();
        assertThat(decode.scheduler().hasPendingWork()).isFalse();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void aRefusedRequestCompletesItsLease() {
        JsonFields params = prefilled("p-1", 9);
        assertThat(prefill.usedBlocks()).isEqualTo(3);
        decode.scheduler().onRefused("d-1", params);
        assertThat(decode.scheduler().hasPendingWork()).isTrue();
        allBlocksAreBack();
        assertThat(decode.scheduler().hasPendingWork()).isFalse();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void wrongParametersOfARefusedRequestAreIgnored() {
        step(decode);
        decode.scheduler().onRefused("d-1", JsonFields.parse("kv_transfer_params", "{\"do_remote_prefill\": true}"));
        decode.scheduler().onRefused("d-2", JsonFields.parse("kv_transfer_params", "{\"do_remote_prefill\": 1}"));
        assertThat(decode.scheduler().hasPendingWork()).isFalse();
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 3})
    void anAbortAtEachStageEndsTheLoadAndTheLease(int stage) {
        JsonFields params = prefilled("p-1", 9);
        net.hold(true);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        step(decode);
        // The handshake, the blocks, their checksums, the comparison.
        for (int i = 0; i < stage; i++) {
            net.runOne();
            step(decode);
        }
        assertThat(running.isLoading()).isTrue();
        decode.end(running, RequestEnd.ABORTED);
        net.hold(false);
        allBlocksAreBack();
        assertThat(running.isFreed()).isTrue();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @ParameterizedTest
    @ValueSource(strings = {"ABORTED", "ERROR"})
    void aPrefillThatFailedHasNoLease(String how) {
        Running running = prefill.admit(request("p-1", 9).withKvTransferParams(KEEP), 0);
        prefill.step(new Share(running, 4));
        assertThat(prefill.end(running, RequestEnd.valueOf(how))).isEmpty();
        assertThat(running.isFreed()).isTrue();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{'do_remote_prefill': true}",
                "{'do_remote_prefill': true, 'remote_engine_id': 'p', 'remote_request_id': 'p-1', 'remote_host': 'h'}",
                "{'do_remote_prefill': true, 'remote_engine_id': 'p', 'remote_request_id': 'p-1', 'remote_host': 'h', 'remote_port': 70000}",
                "{'do_remote_prefill': true, 'remote_engine_id': 7, 'remote_request_id': 'p-1', 'remote_host': 'h', 'remote_port': 7}",
                "{'do_remote_prefill': true, 'remote_engine_id': 'p', 'remote_request_id': 'p-1', 'remote_host': 'h', 'remote_port': 7, 'remote_block_ids': [-1]}",
                "{'do_remote_prefill': true, 'remote_engine_id': 'p', 'remote_request_id': 'p-1', 'remote_host': 'h', 'remote_port': 7, 'remote_block_ids': [99999999999999999999]}",
                "{'do_remote_prefill': true, 'remote_engine_id': 'p', 'remote_request_id': 'p-1', 'remote_host': 'h', 'remote_port': 7, 'remote_block_ids': [1], 'tp_size': 2000000000}",
                "{'do_remote_prefill': 'perhaps'}"
            })
    void parametersThatMakeNoSenseLeadToALocalPrefill(String text) {
        JsonFields params = JsonFields.parse("kv_transfer_params", text.replace('\'', '"'));
        decode.scheduler().onRefused("d-0", params);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        assertThat(running.isLoading()).isFalse();
        completes(running);
        allBlocksAreBack();
    }

    private Running loadedFrom(JsonFields params, int length) {
        Running running = decode.admit(request("d-1", length).withKvTransferParams(params), 0);
        load(running);
        return running;
    }

    private void nothingIsUsed(Running running, Rejection... causes) {
        assertThat(running.computedTokens()).isZero();
        step(decode);
        assertThat(rejections())
                .containsExactlyInAnyOrder(
                        List.of(causes).stream().map(Rejection::label).toArray(String[]::new));
        completes(running);
    }

    @Test
    void reusedBlocksAreStaleByTheirGeneration() {
        JsonFields params = prefilled("p-1", 9);
        ticker.advance(Duration.ofSeconds(31));
        step(prefill);
        assertThat(prefill.usedBlocks()).isZero();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isEqualTo(1);
        // Everyone's turn comes.
        for (int i = 0; i < 40; i += 4) {
            prefill.prefill(new FakeKvRequest("o-" + i, FakeKvRequest.counting(500 + i, 16), BLOCK_SIZE));
        }
        nothingIsUsed(loadedFrom(params, 9), Rejection.STALE);
        allBlocksAreBack();
    }

    @Test
    void blocksThatAreOverwrittenDuringTheReadAreStaleByTheirGeneration() {
        JsonFields params = prefilled("p-1", 9);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        net.hold(true);
        step(decode);
        net.runOne();
        step(decode);
        assertThat(net.waiting()).isEqualTo(1);
        step(prefill);
        ticker.advance(Duration.ofSeconds(31));
        step(prefill);
        for (int i = 0; i < 40; i += 4) {
            prefill.prefill(new FakeKvRequest("o-" + i, FakeKvRequest.counting(500 + i, 16), BLOCK_SIZE));
        }
        net.hold(false);
        load(running);
        nothingIsUsed(running, Rejection.STALE);
    }

    private void prefillWith(String digest) {
        prefill.close();
        prefillRuntime = net.runtime();
        prefill = engine(prefillRuntime, "p", Map.of("kv_digest", digest));
    }

    @ParameterizedTest
    @ValueSource(strings = {"auto", "crc32c", "sum61"})
    void aWrongByteFailsItsBlocksChecksum(String digest) {
        prefillWith(digest);
        FakeKvRequest request = request("p-1", 17);
        Running first = prefill.admit(request.withKvTransferParams(KEEP), 0);
        prefill.step(new Share(first, 17));
        JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
        step(prefill);
        var block = prefill.cache().block(first.blockTable()[2]);
        block.set(ValueLayout.JAVA_BYTE, 100, (byte) ~block.get(ValueLayout.JAVA_BYTE, 100));

        Running running = loadedFrom(params, 17);
        assertThat(running.computedTokens()).isEqualTo(8);
        assertThat(decode.holds(running, 0, 8)).isTrue();
        assertThat(rejections()).containsExactly("corrupt");
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aDevicesPoolIsReachedDirectlyAndChecked() {
        prefill.close();
        decode.close();
        prefill = direct(prefillRuntime, "p");
        decode = direct(decodeRuntime, "d");
        // The checksums only are host memory of the connector's.
        assertThat(prefillRuntime.allocated()).isEqualTo(1);
        Running good = loadedFrom(prefilled("p-1", 17), 17);
        assertThat(good.computedTokens()).isEqualTo(16);
        completes(good);
        FakeKvRequest request = request("p-2", 17);
        Running second = prefill.admit(request.withKvTransferParams(KEEP), 0);
        prefill.step(new Share(second, 17));
        JsonFields params = prefill.end(second, RequestEnd.LENGTH).orElseThrow();
        step(prefill);
        long at = second.blockTable()[2] * LAYOUT.blockBytes() + 100;
        prefill.bytes().set(ValueLayout.JAVA_BYTE, at, (byte) ~prefill.bytes().get(ValueLayout.JAVA_BYTE, at));
        Running running = loadedFrom(params, 17);
        assertThat(running.computedTokens()).isEqualTo(8);
        assertThat(rejections()).containsExactly("corrupt");
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void anAgentThatDoesNotReachTheDeviceIsRefusedByTheOption() {
        net.withoutDevices();
        MemoryRuntime runtime = net.runtime();
        assertThatThrownBy(() -> direct(runtime, "d2"))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_buffer_device: is cuda, but the transfer agent")
                .hasMessageContaining("does not reach memory of refusing:0: it must be cpu");
        assertThat(runtime.allocated()).isZero();
    }

    @Test
    void blocksWithoutADigestAreUsedUnverifiedOrRefused() {
        prefillWith("none");
        Running running = loadedFrom(prefilled("p-1", 17), 17);
        assertThat(decode.holds(running, 0, 16)).isTrue();
        assertThat(counted("baton:kv_unverified_loads")).isEqualTo(1);
        completes(running);
        decode.close();
        decode = engine(decodeRuntime, "d", Map.of("require_verified_kv", true));
        nothingIsUsed(loadedFrom(prefilled("p-2", 17), 17), Rejection.UNVERIFIED);
        allBlocksAreBack();
    }

    @Test
    void blocksWithoutADigestHaveGenerations() {
        prefillWith("none");
        JsonFields params = prefilled("p-1", 9);
        ticker.advance(Duration.ofSeconds(31));
        step(prefill);
        for (int i = 0; i < 40; i += 4) {
            prefill.prefill(new FakeKvRequest("o-" + i, FakeKvRequest.counting(500 + i, 16), BLOCK_SIZE));
        }
        nothingIsUsed(loadedFrom(params, 9), Rejection.STALE);
        allBlocksAreBack();
    }

    private static JsonFields with(JsonFields params, Consumer<ObjectNode> change) {
        ObjectNode json = params.toJson();
        change.accept(json);
        return JsonFields.of("kv_transfer_params", json);
    }

    @Test
    void aReferenceToOtherBlocksIsForged() {
        JsonFields params = prefilled("p-1", 9);
        nothingIsUsed(
                loadedFrom(
                        with(
                                params,
                                json -> ((ArrayNode)
                                                json.get("remote_block_ids").get(0))
                                        .set(0, json.numberNode(20))),
                        9),
                Rejection.FORGED);
        assertThat(prefill.usedBlocks()).isPositive();
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }

    @Test
    void aReferenceWithoutItsSignedProofIsForged() {
        JsonFields params = prefilled("p-1", 9);
        nothingIsUsed(loadedFrom(with(params, json -> json.remove("baton")), 9), Rejection.FORGED);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }

    @Test
    void aReferenceThatLostBlocksIsTruncated() {
        JsonFields params = prefilled("p-1", 9);
        JsonFields cut =
                with(params, json -> ((ArrayNode) json.get("remote_block_ids").get(0)).remove(2));
        nothingIsUsed(loadedFrom(cut, 9), Rejection.TRUNCATED);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }

    @Test
    void aReferenceToAnotherPromptIsAMismatchAndGivenBack() {
        JsonFields params = prefilled("p-1", 9);
        FakeKvRequest other = new FakeKvRequest("d-1", FakeKvRequest.counting(77, 9), BLOCK_SIZE);
        Running running = decode.admit(other.withKvTransferParams(params), 0);
        load(running);
        nothingIsUsed(running, Rejection.MISMATCH);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void anotherSaltIsAnotherPrompt() {
        JsonFields params = prefilled(request("p-1", 9).withCacheSalt("mine"));
        Running running = decode.admit(request("d-1", 9).withCacheSalt("yours").withKvTransferParams(params), 0);
        load(running);
        nothingIsUsed(running, Rejection.MISMATCH);
        allBlocksAreBack();
    }

    @Test
    void aBlockNamedTwiceIsInvalid() {
        JsonFields params = prefilled("p-1", 9);
        JsonFields twice = with(params, json -> {
            ArrayNode blocks = (ArrayNode) json.get("remote_block_ids").get(0);
            blocks.set(0, blocks.get(1));
        });
        nothingIsUsed(loadedFrom(twice, 9), Rejection.INVALID);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }

    @Test
    void aReferenceToAnEarlierIncarnationIsStale() {
        JsonFields params = prefilled("p-1", 9);
        net.kill(prefillRuntime);
        prefill.close();
        int port = (int) params.integer("remote_port").orElseThrow().longValue();
        prefillRuntime = net.runtime();
        prefill = engine(prefillRuntime, "p", Map.of("side_channel_port", port));
        nothingIsUsed(loadedFrom(params, 9), Rejection.STALE);
        allBlocksAreBack();
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2})
    void aPrefillInstanceThatDiesAtEachStageCostsARecompute(int stage) {
        JsonFields params = prefilled("p-1", 9);
        net.hold(true);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        step(decode);
        for (int i = 0; i < stage; i++) {
            net.runOne();
            step(decode);
        }
        net.kill(prefillRuntime);
        net.hold(false);
        load(running);
        assertThat(running.computedTokens()).isZero();
        assertThat(counted("vllm:nixl_num_failed_transfers")).isEqualTo(1);
        completes(running);
        step(decode);
        assertThat(decode.usedBlocks()).isZero();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void afterABrokenConnectionTheNextRequestIsRead(boolean bothWays) {
        JsonFields params = prefilled("p-1", 9);
        net.hold(true);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        step(decode);
        net.run();
        step(decode);
        net.disconnect(decodeRuntime, prefillRuntime);
        if (bothWays) {
            net.disconnect(prefillRuntime, decodeRuntime);
        }
        net.hold(false);
        load(running);
        assertThat(running.computedTokens()).isZero();
        completes(running);
        for (int i = 2; i < 4; i++) {
            ticker.advance(Duration.ofMillis(1));
            Running next = decode.admit(request("d-" + i, 9).withKvTransferParams(prefilled("p-" + i, 9)), 0);
            load(next);
            assertThat(next.computedTokens()).isEqualTo(8);
            completes(next);
        }
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void aHandshakeThatIsNeverAnsweredEndsInTime() {
        JsonFields params = prefilled("p-1", 9);
        net.hold(true);
        Running running = decode.admit(request("d-1", 9).withKvTransferParams(params), 0);
        step(decode);
        ticker.advance(Duration.ofMillis(4990));
        step(decode);
        assertThat(running.isLoading()).isTrue();
        ticker.advance(Duration.ofMillis(20));
        step(decode);
        assertThat(running.isLoading()).isFalse();
        assertThat(running.computedTokens()).isZero();
        net.hold(false);
        decode.resume(running);
        completes(running);
        step(prefill);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }

    @Test
    void heartbeatsExtendTheLeaseOfARequestThatWaits() {
        JsonFields params = prefilled("p-1", 9);
        FakeKvRequest request = request("d-1", 9).withKvTransferParams(params);
        decode.scheduler().onNewRequest(request);
        Running other = decode.admit(request("other", 11), 0);
        for (int i = 0; i < 100; i++) {
            ticker.advance(Duration.ofSeconds(1));
            if (i % 10 == 0) {
                decode.step(new Share(other, 1));
            }
            step(decode);
            step(prefill);
            assertThat(prefill.usedBlocks()).isEqualTo(3);
        }
        decode.end(other, RequestEnd.ABORTED);
        decode.scheduler().onFinished(request, RequestEnd.ABORTED, new int[0]);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void leasesOfADeadReaderEndAtOnce() {
        JsonFields params = prefilled("p-1", 9);
        FakeKvRequest request = request("d-1", 9).withKvTransferParams(params);
        decode.scheduler().onNewRequest(request);
        step(decode);
        step(prefill);
        assertThat(prefill.usedBlocks()).isEqualTo(3);
        net.kill(decodeRuntime);
        step(prefill);
        assertThat(prefill.usedBlocks()).isZero();
        assertThat(counted("baton:kv_orphaned_leases")).isEqualTo(1);
    }

    @Test
    void unknownNotificationsAreCountedAndIgnored() {
        JsonFields params = prefilled("p-1", 9);
        for (String message :
                List.of("", ":", "nobody:1", "p-1:", "p-1:0", "p-1:-1", "p-1:x", "p-1", "HB:", "HB:x,y,,", "\0\1")) {
            net.inject(prefillRuntime, "someone", message);
        }
        step(prefill);
        assertThat(prefill.usedBlocks()).isEqualTo(3);
        assertThat(counted("baton:kv_unknown_notifications")).isEqualTo(9);
        completes(loadedFrom(params, 9));
        allBlocksAreBack();
        // Late and double.
        net.inject(prefillRuntime, "someone", "p-1:1");
        step(prefill);
        assertThat(counted("baton:kv_unknown_notifications")).isEqualTo(10);
    }

    @Test
    void aPeerThatIsUnusedForLongIsDisconnectedAndConnectedAgain() {
        completes(loadedFrom(prefilled("p-1", 9), 9));
        allBlocksAreBack();
        assertThat(decodeRuntime.allocated()).isEqualTo(2);
        ticker.advance(Duration.ofHours(2));
        step(decode);
        assertThat(decodeRuntime.allocated()).isEqualTo(1);
        JsonFields params = prefilled("p-2", 9);
        Running running = decode.admit(request("d-2", 9).withKvTransferParams(params), 0);
        load(running);
        assertThat(running.computedTokens()).isEqualTo(8);
        completes(running);
        allBlocksAreBack();
    }

    /** The decode instance's answer to a turn of 17 tokens, 16 of which it keeps for the next; both engines are new. */
    private JsonFields earlierTurn() {
        decode.close();
        prefill.close();
        prefill = engine(prefillRuntime, "p", Map.of("bidirectional_kv_xfer", true, "kv_recompute_threshold", 8));
        decode = engine(decodeRuntime, "d", Map.of("bidirectional_kv_xfer", true));
        Running turn = loadedFrom(prefilled("p-1", 17), 17);
        decode.step(new Share(turn, turn.remainingTokens()));
        JsonFields answer = decode.end(turn, RequestEnd.STOPPED).orElseThrow();
        step(decode);
        return answer;
    }

    /** The prefill request's parameters of the turn after that. */
    private static JsonFields nextTurn(JsonFields earlier) {
        return with(earlier, json -> json.put("do_remote_decode", true).put("do_remote_prefill", false));
    }

    @Test
    void thePrefillInstancePullsTheBlocksOfTheEarlierTurn() {
        JsonFields earlier = earlierTurn();
        assertThat(earlier.integer("remote_num_tokens")).contains(16L);

        JsonFields next = nextTurn(earlier);
        Running second = prefill.admit(request("p-2", 25).withKvTransferParams(next), 0);
        assertThat(second.isLoading()).isTrue();
        for (int i = 0; second.isLoading(); i++) {
            assertThat(i).isLessThan(100);
            step(prefill);
        }
        prefill.resume(second);
        assertThat(second.computedTokens()).isEqualTo(16);
        prefill.step(new Share(second, second.remainingTokens()));
        assertThat(prefill.holds(second, 0, 25)).isTrue();
        JsonFields params = prefill.end(second, RequestEnd.LENGTH).orElseThrow();
        step(prefill);
        Running third = decode.admit(request("d-2", 25).withKvTransferParams(params), 0);
        load(third);
        assertThat(third.computedTokens()).isEqualTo(24);
        decode.step(new Share(third, third.remainingTokens()));
        assertThat(decode.holds(third, 0, 25)).isTrue();
        decode.end(third, RequestEnd.ABORTED);
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
    }

    /** By the owner's clock, which the handshake compares. Heartbeats may have extended the lease; vLLM does not count on that. */
    @ParameterizedTest
    @CsvSource({"474, 16", "476, 0"})
    void anEarlierTurnWithALeaseOfFiveMoreSecondsIsNotPulled(int secondsLater, int pulled) {
        JsonFields earlier = earlierTurn();
        ticker.advance(Duration.ofSeconds(secondsLater));
        JsonFields next = nextTurn(earlier);
        Running second = prefill.admit(request("p-2", 25).withKvTransferParams(next), 0);
        for (int i = 0; second.isLoading(); i++) {
            assertThat(i).isLessThan(100);
            step(prefill);
        }
        prefill.resume(second);
        assertThat(second.computedTokens()).isEqualTo(pulled);
        prefill.end(second, RequestEnd.ABORTED);
        allBlocksAreBack();
        assertThat(rejections()).isEqualTo(pulled > 0 ? List.of() : List.of(Rejection.STALE.label()));
    }

    @Test
    void anEarlierTurnThatIsTooShortIsComputedAndItsLeaseCompleted() {
        decode.close();
        prefill.close();
        prefill = engine(prefillRuntime, "p", Map.of("bidirectional_kv_xfer", true, "kv_recompute_threshold", 64));
        decode = engine(decodeRuntime, "d", Map.of("bidirectional_kv_xfer", true));
        Running turn = loadedFrom(prefilled("p-1", 17), 17);
        decode.step(new Share(turn, turn.remainingTokens()));
        JsonFields earlier = decode.end(turn, RequestEnd.STOPPED).orElseThrow();
        step(decode);
        JsonFields next = nextTurn(earlier);
        Running second = prefill.admit(request("p-2", 25).withKvTransferParams(next), 0);
        assertThat(second.isLoading()).isFalse();
        step(prefill);
        step(decode);
        assertThat(decode.usedBlocks()).isZero();
        prefill.end(second, RequestEnd.ABORTED);
        allBlocksAreBack();
    }

    /** Prefill and decode: parallel size, block size. With more ranks than heads several ranks have the same head. */
    @ParameterizedTest
    @CsvSource({
        "2, 4, 1, 4",
        "1, 4, 2, 4",
        "2, 4, 2, 4",
        "4, 4, 2, 4",
        "4, 4, 1, 4",
        "2, 4, 4, 4",
        "1, 4, 4, 4",
        "1, 4, 1, 8",
        "1, 2, 1, 8",
        "2, 4, 1, 8",
        "1, 4, 2, 8",
        "4, 2, 2, 4",
        "1, 32, 1, 16",
        "1, 16, 1, 32",
        "2, 32, 1, 16",
        "1, 32, 2, 32",
        "1, 16, 2, 48"
    })
    void partsOfBlocksFindTheirPlaces(int prefillSize, int prefillBlocks, int decodeSize, int decodeBlocks) {
        decode.close();
        prefill.close();
        prefill = engine(prefillRuntime, "p", Map.of(), prefillSize, prefillBlocks);
        decode = engine(decodeRuntime, "d", Map.of(), decodeSize, decodeBlocks);
        for (int length : new int[] {1, 3, 4, 5, 8, 9, 16, 17, 21, 32, 33, 49, 64, 97}) {
            int[] prompt = FakeKvRequest.counting(length * 100, length);
            JsonFields params = prefilled(new FakeKvRequest("p-" + length, prompt, prefillBlocks));
            Running running = decode.admit(
                    new FakeKvRequest("d-" + length, prompt, decodeBlocks).withKvTransferParams(params),
                    length > 64 ? (48 % decodeBlocks == 0 ? 48 : 64) : length > 8 && 8 % decodeBlocks == 0 ? 8 : 0);
            load(running);
            assertThat(running.computedTokens()).isEqualTo(length - 1);
            assertThat(decode.holds(running, 0, length - 1)).isTrue();
            completes(running);
            allBlocksAreBack();
        }
        assertThat(rejections()).isEmpty();
        assertThat(counted("baton:kv_unknown_notifications")).isZero();
    }

    @Test
    void geometriesThatDoNotFitAreRefused() {
        decode.close();
        decode = engine(decodeRuntime, "d", Map.of(), 1, 6);
        JsonFields params = prefilled("p-1", 9);
        Running running =
                decode.admit(new FakeKvRequest("d-1", FakeKvRequest.counting(1, 9), 6).withKvTransferParams(params), 0);
        load(running);
        assertThat(running.computedTokens()).isZero();
        assertThat(counted("vllm:nixl_num_failed_transfers")).isEqualTo(1);
        completes(running);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
    }
}
